"""Arguments and options that several commands share, and what they mean for a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detkit.core.console import say
from detkit.core.errors import UserError

if TYPE_CHECKING:
    from detkit.core.run import Run
    from detkit.recipe.schema import Recipe

# Where the data lies may change between machines; what it is may not.
MOVABLE = ("param data.root:", "param data.workers:", "param data.cache_mb:")

RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]",
        help="Run directory. Without it: $DETKIT_RUN, the run around the working directory, then .detkit/current.",
    ),
]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=V", help="Change a setting; it stays changed in the run.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Redo this stage although it is up to date.")]


def chosen_run(argument: Path | None) -> "Run":
    """The run that a command means, announced with the reason."""
    from detkit.core.run import resolve_run

    run, reason = resolve_run(argument)
    say(f"run: {run.path} ({reason})")
    return run


def run_recipe(run: "Run", changes: list[str]) -> "Recipe":
    """The run's recipe; changes are written back and announced.

    Raises UserError for changes to data, model and train settings, which are fixed once training has begun.
    """
    from detkit.core.files import write_bytes_atomically
    from detkit.pipeline import FIXED, settings_that_differ
    from detkit.recipe.load import changed, load_recipe, yaml_from_recipe

    recipe = load_recipe(run.recipe_path)
    if not changes:
        return recipe
    new = changed(recipe, changes)
    fixed = [line for line in settings_that_differ(recipe, new, FIXED) if not line.startswith(MOVABLE)]
    if fixed:
        raise UserError(
            f"training has begun in {run.path}, so this is fixed: {'; '.join(fixed)}",
            hint="detkit train RECIPE --run NEW_FOLDER --set ...",
        )
    for line in settings_that_differ(recipe, new, ("data", "fuse", "export", "compile", "bench", "expect")):
        say(f"recipe: {line}")
    write_bytes_atomically(run.recipe_path, yaml_from_recipe(new).encode())
    return new


def compile_changes(target: str | None, *, fp16: bool, fp32: bool, batch: int | None, changes: list[str] | None) -> list[str]:
    """`--set` texts for compile's own flags."""
    if fp16 and fp32:
        raise UserError("--fp16 and --fp32 exclude each other", hint="give one of them")
    found = list(changes or [])
    if target is not None:
        found.append(f"compile.target={target}")
    if fp16 or fp32:
        found.append(f"compile.precision={'fp16' if fp16 else 'fp32'}")
    if batch is not None:
        found.append(f"compile.batch={batch}")
    return found


def printed(values: dict[str, Any], *, as_json: bool, lines: list[str]) -> None:
    """The result on stdout: one JSON object, or lines for people."""
    import json

    print(json.dumps(values, indent=2) if as_json else "\n".join(lines))
