"""The stages and their order: the only module that knows all of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detkit.core.console import say
from detkit.core.errors import UserError
from detkit.core.files import read_json, write_bytes_atomically, write_json_atomically
from detkit.core.manifest import Manifest, differences, read_manifest
from detkit.core.modules import require_modules
from detkit.core.run import Run, create_run, is_run, remember_current
from detkit.core.stage import Stage, Work, bring_up_to_date, facts
from detkit.recipe.load import load_recipe, yaml_from_recipe
from detkit.recipe.schema import Recipe

INSTALL = "pip install detkit[train]"
FIXED = ("data", "model", "train")
# What each torch or ONNX artifact of `eval` is made from.
EVALUATED = {
    "train": ("train/model.safetensors", "train/model.json"),
    "fuse": ("fuse/model.safetensors", "fuse/model.json"),
    "onnx-unsimplified": ("export/model.unsimplified.onnx", "export/contract.json"),
    "onnx": ("export/model.onnx", "export/contract.json"),
}
# Files that a compiled variant consists of, by target.
ARTIFACTS = {
    "onnxruntime": ("model.onnx",),
    "openvino": ("model.xml", "model.bin"),
    "rtx": ("model.engine",),
    "tensorrt": ("model.engine",),
}


def train_stage() -> Stage:
    def function(work: Work) -> dict[str, Any]:
        from detkit.train.stage import train_stage

        return train_stage(work)

    return Stage("train", "train", 1, function, params=FIXED, tools=("torch",), resumable=True)


def fuse_stage() -> Stage:
    def function(work: Work) -> dict[str, Any]:
        from detkit.export.fuse import fuse_stage

        return fuse_stage(work)

    inputs = ("train/model.safetensors", "train/model.json", "train/probe.npz")
    return Stage("fuse", "fuse", 1, function, params=("fuse",), inputs=inputs, tools=("torch",))


def export_stage() -> Stage:
    def function(work: Work) -> dict[str, Any]:
        from detkit.export.stage import export_stage

        return export_stage(work)

    inputs = ("fuse/model.safetensors", "fuse/model.json", "train/probe.npz")
    tools = ("torch", "onnx", "onnxsim", "onnxruntime")
    return Stage("export", "export", 1, function, params=("export",), inputs=inputs, tools=tools)


def compile_stage(recipe: Recipe) -> Stage:
    """The variant that `recipe.compile` asks for; its target is concrete."""
    settings = recipe.compile

    def function(work: Work) -> dict[str, Any]:
        from detkit.data.dataset import load_dataset
        from detkit.deploy.build import build_variant
        from detkit.deploy.handed import missing_writers, take_graph

        if missing_writers():
            written = take_graph(work.run.folder("compile"), work.run.folder("export/model.onnx"), settings, work.folder)
            say(f"compile: without {', '.join(missing_writers())} no graph is written here; taken from {written['graph_from']}")
        else:
            from detkit.export.variant import write_variant

            written = write_variant(work)
        built = build_variant(
            work.folder,
            settings,
            reference=work.run.folder("export"),
            dataset=lambda: load_dataset(work.recipe.data, "val"),
            ap_exported=written.pop("ap_exported", None),
        )
        return written | built

    tools = {
        "onnxruntime": ("onnxruntime",),
        "openvino": ("openvino",),
        "rtx": ("tensorrt-rtx-cu13",),
        "tensorrt": ("tensorrt",),
    }[settings.target]
    return Stage(
        "compile",
        f"compile/{variant_name(recipe)}",
        1,
        function,
        params=("compile",),
        inputs=("export/model.onnx", "export/contract.json"),
        tools=(*tools, "onnx"),
    )


def bench_stage(recipe: Recipe, variant: str) -> Stage:
    def function(work: Work) -> dict[str, Any]:
        from detkit.deploy.bench import bench_stage

        return bench_stage(Work(work.run, work.recipe, work.folder, work.options | {"variant": variant}))

    inputs = tuple(f"compile/{variant}/{name}" for name in (*ARTIFACTS[variant.split("-")[0]], "contract.json"))
    folder = f"bench/{recipe.bench.device}/{variant}"
    return Stage("bench", folder, 1, function, params=("bench",), inputs=inputs)


def eval_stage(recipe: Recipe, artifact: str) -> Stage:
    """Scores of one artifact on the validation pictures."""

    def function(work: Work) -> dict[str, Any]:
        from detkit.data.dataset import load_dataset
        from detkit.deploy.evaluate import details

        scores = evaluated(work, artifact)
        results = scores.pop("results")
        write_json_atomically(work.folder / "detections.json", results)
        write_json_atomically(work.folder / "details.json", details(load_dataset(work.recipe.data, "val"), results))
        write_json_atomically(work.folder / "accuracy.json", scores)
        return scores

    if artifact in EVALUATED:
        inputs = EVALUATED[artifact]
    else:
        names = (*ARTIFACTS[artifact.split("-")[0]], "contract.json")
        inputs = tuple(f"compile/{artifact}/{name}" for name in names)
    return Stage("eval", f"eval/{artifact}", 2, function, params=("data",), inputs=inputs)


def evaluated(work: Work, artifact: str) -> dict[str, Any]:
    """COCO scores and results rows of a torch model, an ONNX graph or a compiled variant."""
    if artifact in ("train", "fuse"):
        from detkit.train.evaluate import evaluate_torch

        return evaluate_torch(work.run.folder(artifact), work.recipe.data)
    from detkit.data.dataset import load_dataset
    from detkit.deploy.contract import read_contract
    from detkit.deploy.evaluate import evaluate_runner
    from detkit.deploy.runners import open_runner
    from detkit.deploy.targets.onnxruntime import OnnxRuntimeRunner

    dataset = load_dataset(work.recipe.data, "val")
    if artifact in EVALUATED:
        contract = read_contract(work.run.folder("export"))
        runner: Any = OnnxRuntimeRunner(work.run.folder(EVALUATED[artifact][0]), contract)
    else:
        folder = work.run.folder(f"compile/{artifact}")
        contract = read_contract(folder)
        runner = open_runner(folder, artifact.split("-")[0], contract)
    return evaluate_runner(runner, contract, dataset)


def variant_name(recipe: Recipe) -> str:
    settings = recipe.compile
    return f"{settings.target}-{settings.precision}-b{settings.batch}"


def variants(run: Run) -> list[str]:
    """Compiled variants of a run, by name."""
    return sorted(p.parent.name for p in run.folder("compile").glob("*/manifest.json") if p.parent.name[0] != ".")


def with_target(recipe: Recipe) -> Recipe:
    """The recipe with `auto` replaced by the target that this machine runs best."""
    from detkit.deploy.runners import target_for

    return recipe.derive({"compile.target": target_for(recipe.compile.target)})


def settled(run: Run, recipe: Recipe, folder: Path) -> None:
    """Make `recipe` the run's. Raises UserError where training has begun with other settings. The caller holds the lock."""
    there = load_recipe(run.recipe_path)
    changed = settings_that_differ(there, recipe, FIXED)
    has_begun = run.folder("train/last.ckpt").is_file() or read_manifest(run.folder("train")) is not None
    if changed and has_begun:
        raise UserError(
            f"{folder} is a run of other settings: {'; '.join(changed[:5])}",
            hint=f"detkit train RECIPE --run {free_name(folder)}, or delete {folder}",
        )
    if there != recipe:
        # Settings of later stages may change; what flags changed earlier gives way to the recipe named now.
        write_bytes_atomically(run.recipe_path, yaml_from_recipe(recipe).encode())


def settings_that_differ(old: Recipe, new: Recipe, sections: tuple[str, ...]) -> list[str]:
    """`param a.b: old -> new` for every differing setting of the sections."""
    blank = {"stage": "", "version": 0, "inputs": {}, "tools": {}}

    def manifest(recipe: Recipe) -> Manifest:
        from detkit.core.stage import leaves

        return Manifest(**blank, params={n: v for s in sections for n, v in leaves(recipe, s)})

    return differences(manifest(old), manifest(new))


def free_name(folder: Path) -> Path:
    return next(p for n in range(2, 1000) if not (p := folder.with_name(f"{folder.name}-{n}")).exists())


def train(recipe: Recipe, folder: Path, *, nproc: int, force: bool) -> tuple[Run, Manifest, bool]:
    """Train into `folder`, resuming what was interrupted; a finished training is up to date whatever changed since."""
    require_modules(("torch", "torchvision", "timm", "cv2"), "train", hint=INSTALL)
    is_new = not is_run(folder)
    run = create_run(folder, yaml_from_recipe(recipe)) if is_new else Run(folder)
    say(f"run: {run.path} ({'new' if is_new else 'continues'})")
    with run.lock():
        settled(run, recipe, folder)
        remember_current(run)
        recorded = read_manifest(run.folder("train"))
        if recorded is not None and not force:
            return run, recorded, False
        if force and recorded is not None:
            say("train: forced; the finished training is replaced")
            (run.folder("train") / "last.ckpt").unlink(missing_ok=True)
        manifest, changed = bring_up_to_date(train_stage(), run, recipe, force=force, options={"nproc": nproc})
    return run, manifest, changed


def trained_or_error(run: Run) -> None:
    """Raises UserError where training has not finished: it is never implied."""
    if read_manifest(run.folder("train")) is None:
        raise UserError(f"training has not finished in {run.path}", hint=f"detkit train --resume {run.path}")


def derived_stages(recipe: Recipe, upto: str) -> list[Stage]:
    """fuse, export and compile, as far as `upto`."""
    makers: dict[str, Callable[[], Stage]] = {
        "fuse": fuse_stage,
        "export": export_stage,
        "compile": lambda: compile_stage(recipe),
    }
    names = list(makers)
    return [makers[name]() for name in names[: names.index(upto) + 1]]


def update(run: Run, recipe: Recipe, upto: str, *, force: bool = False) -> tuple[Manifest, bool]:
    """Bring the stages up to `upto` up to date, each announced with its reason; `force` redoes the last one.

    The caller holds the run's lock.
    """
    from detkit.deploy.handed import missing_writers

    trained_or_error(run)
    stages = derived_stages(recipe, upto)
    if missing_writers():
        if upto != "compile":
            require_modules(missing_writers(), upto, hint=INSTALL)
        # A board with the runtime half: what was fused and exported elsewhere stays as it is.
        stages = stages[-1:]
    outcome: tuple[Manifest, bool] | None = None
    for stage in stages:
        outcome = bring_up_to_date(stage, run, recipe, force=force and stage is stages[-1])
    assert outcome is not None
    return outcome


def bench(run: Run, recipe: Recipe, *, force: bool) -> tuple[Manifest, bool, str]:
    """Measure the variant that the recipe asks for, compiling it first if needed."""
    from detkit.deploy.bench import check_device

    check_device(recipe.bench.device)
    update(run, recipe, "compile")
    variant = variant_name(recipe)
    manifest, changed = bring_up_to_date(bench_stage(recipe, variant), run, recipe, force=force)
    return manifest, changed, variant


def evaluate(run: Run, recipe: Recipe, artifact: str, *, force: bool) -> dict[str, dict[str, Any]]:
    """Scores by artifact; `all` means every artifact that exists and can run here."""
    from detkit.deploy.handed import missing_writers
    from detkit.deploy.runners import runnable_here

    trained_or_error(run)
    runnable = [v for v in variants(run) if runnable_here(v.split("-")[0])]
    known = runnable if missing_writers() else [*EVALUATED, *runnable]
    if artifact not in (*known, "all"):
        raise UserError(f"there is no artifact {artifact!r} to score here", hint=f"one of: {', '.join(known)}, all")
    if artifact in ("fuse", "onnx", "onnx-unsimplified", "all") and not missing_writers():
        update(run, recipe, "export")
    wanted = known if artifact == "all" else [artifact]
    return {name: bring_up_to_date(eval_stage(recipe, name), run, recipe, force=force)[0].results for name in wanted}


def status(run: Run, recipe: Recipe) -> list[dict[str, Any]]:
    """One row per stage and variant: folder, state and, where stale, why."""
    rows = []
    stages = [train_stage(), fuse_stage(), export_stage()]
    stages += [compile_stage(recipe.derive(variant_settings(run, v))) for v in variants(run)]
    for stage in stages:
        recorded = read_manifest(run.folder(stage.folder))
        if recorded is None:
            unfinished = stage.resumable and run.folder(stage.folder).is_dir()
            rows.append({"folder": stage.folder, "state": "unfinished" if unfinished else "not made", "why": []})
            continue
        stale: list[str] = []
        if not stage.resumable:
            missing = [name for name in stage.inputs if not run.folder(name).is_file()]
            own = recipe if stage.name != "compile" else recipe.derive({"compile": recorded_settings(recorded)})
            stale = [f"input {n} is missing" for n in missing] or differences(recorded, facts(stage, run, own))
        rows.append({"folder": stage.folder, "state": "stale" if stale else "up to date", "why": stale})
    for path in sorted([*run.folder("bench").glob("*/*/manifest.json"), *run.folder("eval").glob("*/manifest.json")]):
        if not any(part.startswith(".") for part in path.relative_to(run.path).parts):
            rows.append({"folder": path.parent.relative_to(run.path).as_posix(), "state": "made", "why": []})
    return rows


def recorded_settings(manifest: Manifest) -> dict[str, Any]:
    """The compile section that a variant's manifest was made with."""
    return {name.removeprefix("compile."): value for name, value in manifest.params.items()}


def variant_settings(run: Run, variant: str) -> dict[str, Any]:
    manifest = Manifest.model_validate(read_json(run.folder(f"compile/{variant}/manifest.json")))
    return {"compile": recorded_settings(manifest)}


def as_json(value: Any) -> str:
    """One JSON object for `--json`."""
    return json.dumps(value, indent=2)
