"""`detkit doctor`: what is wrong with a data set, and what this machine can do and why not the rest."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detkit.cli.options import JsonOption, printed
from detkit.core.errors import UserError

if TYPE_CHECKING:
    from detkit.recipe.schema import DataSettings

GATE_FAILED = 3

doctor = typer.Typer(name="doctor", help="Look for what is wrong with a data set or missing on this machine.", no_args_is_help=True)


@doctor.callback()
def root() -> None:
    """Look for what is wrong with a data set or missing on this machine."""


@doctor.command()
def data(
    target: Annotated[
        Path, typer.Argument(metavar="FOLDER|RECIPE", help="A data set, or a recipe, whose parts and sizes then count.")
    ],
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=V", help="Change a setting of the recipe.")] = None,
    sheet: Annotated[Path, typer.Option("--sheet", help="Where to write the contact sheet.")] = Path("contact-sheet.png"),
    as_json: JsonOption = False,
) -> None:
    """Decode every picture, check every label, and say what training will do about each fault and how to mend it.

    Exits with 3 where there are errors. Example: detkit doctor data photos/ --set data.image_size_px=640
    """
    from detkit.cli.doctor_data import data_lines
    from detkit.data.contact_sheet import write_contact_sheet
    from detkit.data.examine import examined, report

    settings, parts = data_settings(target, changes or [])
    found = examined(settings, parts)
    values = report(found)
    shown = next((index for index in found.parts.values() if len(index.table)), None)
    if shown is not None:
        write_contact_sheet(sheet, shown.table, shown.classes)
        values["contact_sheet"] = str(sheet)
    printed(values, as_json=as_json, lines=data_lines(values, sheet))
    if found.has_errors:
        raise typer.Exit(GATE_FAILED)


def data_settings(target: Path, changes: list[str]) -> tuple["DataSettings", dict[str, tuple[str, ...]] | None]:
    """Settings and parts: those of a recipe or a run, or a folder's own."""
    from detkit.core.run import is_run
    from detkit.recipe.load import changed, load_recipe
    from detkit.recipe.schema import Recipe

    if target.is_dir() and not is_run(target):
        recipe = changed(Recipe(), [*changes, f"data.root={target}"])
        named = any(change.startswith(("data.train=", "data.val=")) for change in changes)
        return recipe.data, {"train": recipe.data.train, "val": recipe.data.val} if named else None
    if not target.exists():
        raise UserError(f"there is no {target}", hint="detkit doctor data FOLDER|RECIPE")
    recipe = load_recipe(target / "recipe.yaml" if target.is_dir() else target, changes=changes)
    return recipe.data, {"train": recipe.data.train, "val": recipe.data.val}


@doctor.command()
def env(as_json: JsonOption = False) -> None:
    """What this machine can train, build and run, and why not the rest.

    Example: detkit doctor env --json
    """
    from detkit.deploy.abilities import abilities
    from detkit.deploy.machine import machine_card

    card, rows = machine_card(), abilities()
    lines = [f"{card['processor']}, {card['num_cpus']} CPUs, Python {card['python']}"]
    width = max(len(row["ability"]) for row in rows)
    for row in rows:
        lines.append(f"{'yes' if row['able'] else 'no ':3}  {row['ability']:{width}}  {row['why']}")
    printed({"machine": card, "abilities": rows}, as_json=as_json, lines=lines)
