"""The train stage: from a recipe to a trained model, its card and the probe that later stages are compared on."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from detkit.core.console import say
from detkit.core.errors import GateError, UserError
from detkit.core.files import write_json_atomically
from detkit.core.stage import Work
from detkit.data.dataset import Dataset, load_dataset, refuse_errors
from detkit.data.findings import summary
from detkit.data.geometry import Geometry
from detkit.data.training import TrainingSamples
from detkit.models.build import build_detector
from detkit.models.cost import cost_of
from detkit.models.files import save_model
from detkit.models.sync_norm import norm_groups, synchronised
from detkit.recipe.schema import Recipe
from detkit.train.checkpoint import Progress
from detkit.train.device import Placement, grad_scaler, micro_batches, placement_from_environment
from detkit.train.ema import WeightAverage
from detkit.train.launch import launched, read_scores
from detkit.train.loader import EpochOrder, TrainLoader
from detkit.train.loop import Course, Trainee, evaluate, resume, train
from detkit.train.plots import write_curves
from detkit.train.probe import write_probe
from detkit.train.tensorboard import write_events

# Everything that was found in the data, left out or read otherwise than written.
FINDINGS = "findings.json"


def train_stage(work: Work) -> dict[str, Any]:
    """Train in this process, or in `work.options["nproc"]` processes, and return the results for the manifest.

    Raises GateError where the accuracy falls short of the recipe's `expect`.
    """
    began = time.perf_counter()
    nproc = int(work.options.get("nproc", 1))
    if nproc > 1:
        launched(work.folder, work.recipe, nproc=nproc)
        results = read_scores(work.folder)
    else:
        results = trained(work.folder, work.recipe)
    write_curves(work.folder)
    write_events(work.folder)
    check_expectation(work.recipe, results)
    return results | {"wall_s": time.perf_counter() - began, "num_processes": nproc}


def trained(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """Train in this process as one rank of the job that the environment describes; the first rank writes the files."""
    place = placement_from_environment()
    began = time.perf_counter()
    training, validation = load_dataset(recipe.data, "train"), load_dataset(recipe.data, "val")
    check_classes(training, validation)
    if place.is_first:
        found = {"train": training, "val": validation}
        for part, dataset in found.items():
            tell_findings(dataset, part)
        write_json_atomically(folder / FINDINGS, {part: [vars(f) for f in dataset.findings] for part, dataset in found.items()})
    refuse_errors(training, "train", recipe.data)
    refuse_errors(validation, "val", recipe.data)
    torch.manual_seed(recipe.train.seed)
    trainee, course = prepared(folder, recipe, place, training=training, validation=validation)
    resume(trainee, folder)
    scores = train(trainee, course)
    if not place.is_first:
        return {}
    if not scores:
        # Killed between the last checkpoint and the commit: the training is whole, only its score is missing.
        scores = evaluate(trainee, course) or {}
    scores.pop("results")
    card = model_card(recipe, training)
    save_model(folder, trainee.average.model, card)
    write_probe(folder, trainee.average.model, validation, course.geometry, recipe=recipe)
    cost = cost_of(trainee.average.model, recipe.data.image_size_px)
    return {
        **scores,
        "num_train_images": len(training.images),
        "num_val_images": len(validation.images),
        "findings": {part: counted(dataset) for part, dataset in (("train", training), ("val", validation))},
        "iterations": trainee.progress.iteration,
        "train_s": trainee.progress.elapsed_s,
        "setup_to_files_s": time.perf_counter() - began,
        "parameters": cost.parameters,
        "macs": cost.macs,
        "device": str(place.device),
    }


def prepared(folder: Path, recipe: Recipe, place: Placement, *, training: Dataset, validation: Dataset) -> tuple[Trainee, Course]:
    """Build everything that the loop needs."""
    settings = recipe.train
    micro_batch, num_accumulated = micro_batches(
        settings.batch, world_size=place.world_size, max_batch_per_device=settings.max_batch_per_device
    )
    if place.is_first:
        say(
            f"global batch {settings.batch} = {place.world_size} processes x {micro_batch} pictures x "
            f"{num_accumulated} accumulated; {settings.precision} on {place.device}"
        )
    geometry = Geometry.from_settings(recipe.data)
    samples = TrainingSamples(
        training,
        geometry,
        recipe.data.augment,
        seed=settings.seed,
        cache_mb=recipe.data.cache_mb // place.world_size,
    )
    order = EpochOrder(len(training.images), batch=settings.batch, rank=place.rank, world_size=place.world_size, seed=settings.seed)
    model = build_detector(recipe.model, len(training.classes)).to(place.device)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trainee = Trainee(
        model=model,
        average=WeightAverage(model, decay=settings.ema_decay, warmup_iterations=settings.ema_warmup_iterations),
        optimizer=optimizer_for(model, recipe),
        scaler=grad_scaler(place.device, settings.precision),
        progress=Progress(),
    )
    if settings.norm == "sync":
        # After the weight average was copied from it: that one only evaluates.
        synchronise(model, recipe, place, micro_batch=micro_batch)
    loader = TrainLoader(samples, micro_batch=micro_batch, order=order, num_workers=recipe.data.workers)
    course = Course(recipe, loader, num_accumulated, validation, geometry, place, folder)
    return trainee, course


def synchronise(model: nn.Module, recipe: Recipe, place: Placement, *, micro_batch: int) -> None:
    """Normalise over the pictures of several processes, and say of which. Raises UserError for groups that cannot be."""
    if recipe.model.block == "dbb" and recipe.model.block_statistics == "sampled":
        raise UserError(
            "train.norm=sync needs statistics of whole batches, model.block_statistics is sampled",
            hint="--set model.block_statistics=exact, or --set train.norm=local",
        )
    whole = micro_batch * place.world_size
    wanted = recipe.train.norm_group or whole
    num_processes, rest = divmod(wanted, micro_batch)
    if rest or not num_processes or place.world_size % num_processes:
        possible = [micro_batch * n for n in range(1, place.world_size + 1) if place.world_size % n == 0]
        raise UserError(
            f"train.norm_group is {wanted}; {place.world_size} processes with {micro_batch} pictures at a time can normalise "
            f"{', '.join(map(str, possible))} together",
            hint=f"--set train.norm_group={min(possible, key=lambda n: abs(n - wanted))}, or change train.max_batch_per_device",
        )
    kept = sorted({type(m).__name__ for m in model.modules() if isinstance(m, nn.BatchNorm2d) and type(m) is not nn.BatchNorm2d})
    group = norm_groups(num_processes) if place.world_size > 1 else None
    count = synchronised(model, group)
    if place.is_first:
        say(f"batch norm over {wanted} pictures of {num_processes} processes, in {count} layers")
        if kept:
            say(f"layers of {', '.join(kept)} stay as they are and normalise by the pictures of one process")


def optimizer_for(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer; weight decay acts on convolution weights only, not on norms and biases."""
    settings = recipe.train
    decayed = [p for p in model.parameters() if p.ndim > 1]
    free = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.momentum > 0)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.momentum, 0.999))


def model_card(recipe: Recipe, training: Dataset) -> dict[str, Any]:
    """What must be known to rebuild the model and to read its outputs."""
    return {
        "model": recipe.model.model_dump(mode="json"),
        "num_classes": len(training.classes),
        "classes": list(training.classes),
        "category_ids": [int(i) for i in training.category_ids],
        "image_size_px": recipe.data.image_size_px,
        "geometry": Geometry.from_settings(recipe.data).as_dict(),
        "fused": False,
    }


def check_classes(training: Dataset, validation: Dataset) -> None:
    """Refuse parts that name their classes differently or hold no picture."""
    for dataset, part in ((training, "train"), (validation, "val")):
        if not dataset.images:
            raise UserError(f"data.{part} has no usable picture", hint="detkit show RECIPE names the folders it reads")
    if training.classes != validation.classes:
        raise UserError(
            f"train has classes {list(training.classes)}, val has {list(validation.classes)}",
            hint="name them in order: --set data.classes=[...]",
        )


def tell_findings(dataset: Dataset, part: str) -> None:
    """Say how many faults of each kind a part has, with the first place."""
    for row in summary(dataset.findings, num_places=1):
        first = row["first"][0]
        say(f"data.{part}: {row['severity']}: {row['count']} x {row['kind']}: {first['place']}: {first['what']}; {row['in_training']}")


def counted(dataset: Dataset) -> dict[str, int]:
    """Faults of each kind; FINDINGS lists every one."""
    return {row["kind"]: row["count"] for row in summary(dataset.findings)}


def check_expectation(recipe: Recipe, results: dict[str, Any]) -> None:
    """Compare scores with the recipe's promise."""
    for name in ("ap", "ap50"):
        promised = getattr(recipe.expect, name)
        if promised is not None and results[name] < promised - recipe.expect.tolerance:
            raise GateError(
                f"{name} is {results[name]:.4f}; the recipe expects {promised:.4f} - {recipe.expect.tolerance:.4f}",
                hint="train/plots shows the course; the same command with --set expect.ap=... accepts what was reached",
            )


__all__ = ["train_stage", "trained"]
