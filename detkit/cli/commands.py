"""The commands, from training to the report."""

from pathlib import Path
from typing import Annotated

import typer

from detkit.cli.doctor import doctor
from detkit.cli.options import (
    ForceOption,
    JsonOption,
    RunArgument,
    SetOption,
    chosen_run,
    compile_changes,
    printed,
    run_recipe,
)
from detkit.cli.results import (
    bench_lines,
    compile_lines,
    eval_lines,
    export_lines,
    fuse_lines,
    score_lines,
    show_lines,
    status_lines,
    train_lines,
)
from detkit.core.errors import UserError

app = typer.Typer(
    name="detkit",
    help="From a recipe to a measured engine, with proof at every step that it is still the same network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(doctor)

TargetOption = Annotated[
    str | None, typer.Option("--target", help="auto, onnxruntime, openvino, rtx or tensorrt.", show_default=False)
]
Fp16Option = Annotated[bool, typer.Option("--fp16", help="float16 convolutions, proved after the build.")]
Fp32Option = Annotated[bool, typer.Option("--fp32", help="float32 throughout.")]
BatchOption = Annotated[int | None, typer.Option("--batch", help="Static batch of the artifact.", show_default=False)]


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    """From a recipe to a measured engine, with proof at every step that it is still the same network."""
    if version:
        from detkit import __version__

        print(__version__)
        raise typer.Exit


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe (.yaml or .py), or with --resume a run directory.")],
    run: Annotated[Path, typer.Option("--run", help="Run directory to make or to continue.")] = Path("run"),
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Processes on this machine.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run given instead of a recipe.")] = False,
    changes: SetOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a recipe from scratch, or continue where it was interrupted.

    Example: detkit train recipes/bccd.yaml --set data.root=PATH --set train.epochs=30
    """
    from detkit import pipeline
    from detkit.core.run import is_run
    from detkit.recipe.load import load_recipe

    if resume or is_run(recipe):
        if not is_run(recipe):
            raise UserError(f"--resume takes a run directory, {recipe} is none", hint="detkit runs")
        run, source = recipe, recipe / "recipe.yaml"
    else:
        source = recipe
    loaded = load_recipe(source, changes=changes or [])
    if loaded.data.root:
        loaded = loaded.derive({"data.root": str(Path(loaded.data.root).expanduser().resolve())})
    opened, manifest, changed = pipeline.train(loaded, run, nproc=nproc, force=force)
    values = {"run": str(opened.path), "changed": changed, "results": manifest.results}
    printed(values, as_json=as_json, lines=train_lines(opened.path, manifest, changed))


@app.command()
def fuse(run: RunArgument = None, changes: SetOption = None, force: ForceOption = False, as_json: JsonOption = False) -> None:
    """Fold every training block into one convolution, proved in float64.

    Example: detkit fuse run/
    """
    from detkit import pipeline

    opened = chosen_run(run)
    with opened.lock():
        manifest, changed = pipeline.update(opened, run_recipe(opened, changes or []), "fuse", force=force)
    values = {"run": str(opened.path), "changed": changed, "results": manifest.results}
    printed(values, as_json=as_json, lines=fuse_lines(manifest, changed))


@app.command()
def export(run: RunArgument = None, changes: SetOption = None, force: ForceOption = False, as_json: JsonOption = False) -> None:
    """Write the fused network as simplified ONNX with its contract, proved in ONNX Runtime.

    Example: detkit export run/ --set export.uint8_input=true
    """
    from detkit import pipeline

    opened = chosen_run(run)
    with opened.lock():
        manifest, changed = pipeline.update(opened, run_recipe(opened, changes or []), "export", force=force)
    values = {"run": str(opened.path), "changed": changed, "results": manifest.results}
    printed(values, as_json=as_json, lines=export_lines(manifest, changed))


@app.command("compile")
def compile_command(
    run: RunArgument = None,
    target: TargetOption = None,
    fp16: Fp16Option = False,
    fp32: Fp32Option = False,
    batch: BatchOption = None,
    changes: SetOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build the artifact that ships and prove its precision, inputs and accuracy.

    Example: detkit compile run/ --target rtx --fp16
    """
    from detkit import pipeline

    opened = chosen_run(run)
    wanted = compile_changes(target, fp16=fp16, fp32=fp32, batch=batch, changes=changes)
    with opened.lock():
        recipe = pipeline.with_target(run_recipe(opened, wanted))
        manifest, changed = pipeline.update(opened, recipe, "compile", force=force)
    name = pipeline.variant_name(recipe)
    values = {"run": str(opened.path), "variant": name, "changed": changed, "results": manifest.results}
    printed(values, as_json=as_json, lines=compile_lines(opened.path, name, manifest, changed))


@app.command()
def bench(
    run: RunArgument = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or jetson.", show_default=False)] = None,
    target: TargetOption = None,
    fp16: Fp16Option = False,
    fp32: Fp32Option = False,
    batch: BatchOption = None,
    changes: SetOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure latency, throughput, the split from file to boxes, and accuracy of the artifact that ships.

    Example: detkit bench run/ --device cpu --target openvino --fp16
    """
    from detkit import pipeline
    from detkit.deploy.bench import check_device

    opened = chosen_run(run)
    wanted = compile_changes(target, fp16=fp16, fp32=fp32, batch=batch, changes=changes)
    if device is not None:
        # A device that cannot be measured here must not stick in the recipe.
        check_device(device)
        wanted.append(f"bench.device={device}")
    with opened.lock():
        recipe = pipeline.with_target(run_recipe(opened, wanted))
        manifest, changed, variant = pipeline.bench(opened, recipe, force=force)
    values = {"run": str(opened.path), "variant": variant, "changed": changed, "results": manifest.results}
    printed(values, as_json=as_json, lines=bench_lines(variant, manifest, changed))


@app.command("eval")
def eval_command(
    run: RunArgument = None,
    artifact: Annotated[str, typer.Option("--artifact", help="train, fuse, onnx-unsimplified, onnx, a variant, or all.")] = "all",
    changes: SetOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """COCO scores of the artifacts of a run on its validation pictures, side by side.

    Example: detkit eval run/ --artifact all
    """
    from detkit import pipeline

    opened = chosen_run(run)
    with opened.lock():
        scores = pipeline.evaluate(opened, run_recipe(opened, changes or []), artifact, force=force)
    printed({"run": str(opened.path), "scores": scores}, as_json=as_json, lines=eval_lines(scores))


@app.command()
def score(
    predictions: Annotated[Path, typer.Argument(help="JSON of COCO result rows, or a folder of PNG masks named as the pictures.")],
    labels: Annotated[Path, typer.Argument(help="Recipe, run or folder of the labels.")],
    part: Annotated[str, typer.Option("--part", help="train or val.")] = "val",
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score predictions that any program made against labels of any format that detkit reads.

    Boxes and masks by COCO's rules to pycocotools' last digit; semantic masks by IoU and Dice.
    Example: detkit score found.json recipes/bccd.yaml --set data.root=BCCD
    """
    from detkit.cli.doctor import data_settings
    from detkit.data.dataset import load_dataset
    from detkit.deploy.score import scored

    if part not in ("train", "val"):
        raise UserError(f"there is no part {part!r}", hint="--part train or --part val")
    settings, _ = data_settings(labels, changes or [])
    values = scored(predictions, load_dataset(settings, part), settings.ignore_ids)
    printed(values, as_json=as_json, lines=score_lines(values))


@app.command()
def predict(
    pictures: Annotated[list[Path], typer.Argument(help="Pictures and folders of pictures.")],
    run: Annotated[Path | None, typer.Option("--run", help="Run directory.", show_default=False)] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for detections.jsonl and annotated pictures.")] = Path("predictions"),
    target: TargetOption = None,
    fp16: Fp16Option = False,
    fp32: Fp32Option = False,
    as_json: JsonOption = False,
) -> None:
    """Detect objects in pictures with the artifact that ships.

    Example: detkit predict photos/ one.jpg --out found/
    """
    from detkit import pipeline
    from detkit.deploy.contract import read_contract
    from detkit.deploy.predict import picture_paths, write_predictions
    from detkit.deploy.runners import open_runner

    paths = picture_paths(pictures)
    opened = chosen_run(run)
    wanted = compile_changes(target, fp16=fp16, fp32=fp32, batch=None, changes=None)
    with opened.lock():
        recipe = pipeline.with_target(run_recipe(opened, wanted))
        pipeline.update(opened, recipe, "compile")
    folder = opened.folder(f"compile/{pipeline.variant_name(recipe)}")
    contract = read_contract(folder)
    results = write_predictions(open_runner(folder, recipe.compile.target, contract), contract, paths, out)
    line = f"{results['num_pictures']} pictures, {results['num_detections']} detections, {len(results['skipped'])} skipped"
    printed({"out": str(out), **results}, as_json=as_json, lines=[f"{line} -> {out}"])


@app.command()
def report(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Write report.html: one self-contained page of everything that the run measured.

    Example: detkit report run/
    """
    from detkit.report.page import write_report

    opened = chosen_run(run)
    page = write_report(opened)
    printed({"report": str(page)}, as_json=as_json, lines=[str(page)])


@app.command()
def status(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """What a run holds, what is stale and why."""
    from detkit import pipeline

    opened = chosen_run(run)
    rows = pipeline.status(opened, run_recipe(opened, []))
    printed({"run": str(opened.path), "stages": rows}, as_json=as_json, lines=status_lines(rows))


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, two levels deep.")] = Path(),
    as_json: JsonOption = False,
) -> None:
    """List runs below a folder."""
    from detkit.core.run import Run, runs_below

    found = [Run(path) for path in runs_below(folder)]
    values = [{"path": str(run.path), "id": run.id, "created_at": run.created_at} for run in found]
    lines = [f"{run.path}  {run.id}  {run.created_at}" for run in found] or [f"no runs below {folder}"]
    printed({"runs": values}, as_json=as_json, lines=lines)


@app.command()
def show(
    recipe: Annotated[Path, typer.Argument(help="Recipe (.yaml or .py) or run directory.")],
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every setting of a recipe with its value and where it came from.

    Example: detkit show recipes/bccd.yaml --set train.lr=1e-3
    """
    from detkit.core.run import is_run
    from detkit.recipe.load import load_sourced

    sourced = load_sourced(recipe / "recipe.yaml" if is_run(recipe) else recipe, changes=changes or [])
    printed(sourced.recipe.model_dump(mode="json"), as_json=as_json, lines=show_lines(sourced))
