"""The training loop: batch, forward, loss, backward, clip, step, schedule, average, log, evaluate, save."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from detkit.core.console import Ticker, say
from detkit.core.errors import UserError
from detkit.core.files import write_bytes_atomically
from detkit.data.dataset import Dataset
from detkit.data.geometry import Geometry
from detkit.models.deploy import DeployDetector
from detkit.recipe.schema import Recipe, TrainSettings
from detkit.train import schedule
from detkit.train.checkpoint import LAST, Progress, load_checkpoint, save_checkpoint
from detkit.train.device import Placement, autocast
from detkit.train.ema import WeightAverage
from detkit.train.evaluate import anchor_centres_for, scored
from detkit.train.loader import Batch, TrainLoader
from detkit.train.loss import Losses, detection_loss
from detkit.train.plots import read_metrics


@dataclass
class Trainee:
    """What training changes: weights, their average, optimizer state, loss scale and progress."""

    model: nn.Module
    average: WeightAverage
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    progress: Progress


@dataclass(frozen=True)
class Course:
    """What training does not change: settings, batches, what is scored, where files go and on which device."""

    recipe: Recipe
    loader: TrainLoader
    num_accumulated: int
    validation: Dataset
    geometry: Geometry
    place: Placement
    folder: Path


def train(trainee: Trainee, course: Course) -> dict[str, Any]:
    """Train from the trainee's progress to the recipe's last epoch; return the last scores (first rank only)."""
    settings = course.recipe.train
    wrapped = distributed(trainee.model, course.place)
    centres_A2 = anchor_centres_for(course.recipe.data.image_size_px).to(course.place.device)
    steps_per_epoch = len(course.loader) // course.num_accumulated
    num_iterations = settings.epochs * steps_per_epoch
    ticker = Ticker("train", total=num_iterations, done=trainee.progress.iteration)
    scores: dict[str, Any] = {}

    for epoch in range(trainee.progress.epoch, settings.epochs):
        began = saved = time.perf_counter()
        wrapped.train()
        closed = epoch >= settings.epochs - course.recipe.data.augment.close_last_epochs
        sums = torch.tensor(trainee.progress.losses)
        done = trainee.progress.iteration - epoch * steps_per_epoch
        batches = course.loader.epoch(epoch, closed=closed, first=done * course.num_accumulated)
        for micro_batches in grouped(batches, course.num_accumulated):
            lr = set_lr(trainee.optimizer, settings, trainee.progress.iteration, num_iterations)
            for batch in micro_batches:
                losses = forward(wrapped, batch, centres_A2, course=course)
                stop_if_not_finite(losses, batch, course, trainee.progress.iteration)
                trainee.scaler.scale(losses.total / course.num_accumulated).backward()
                sums += torch.stack([losses.dense_score, losses.score, losses.box]).cpu() / course.num_accumulated
            step(trainee, clip_norm=settings.clip_norm)
            trainee.progress = replace(trainee.progress, iteration=trainee.progress.iteration + 1)
            ticker.update(trainee.progress.iteration, f"epoch {epoch + 1}/{settings.epochs}  lr {lr:.2e}")
            if is_due(trainee.progress.iteration, settings, steps_per_epoch):
                saved = add_time(trainee, saved)
                trainee.progress = replace(trainee.progress, losses=tuple(sums.tolist()))
                if course.place.is_first:
                    save(trainee, course.folder)
        add_time(trainee, saved)
        trainee.progress = replace(trainee.progress, epoch=epoch + 1, losses=(0.0, 0.0, 0.0))
        row = epoch_row(epoch, sums / steps_per_epoch, lr, began, (steps_per_epoch - done) * settings.batch)
        last = epoch + 1 == settings.epochs
        if last or (epoch + 1) % settings.eval_every_epochs == 0:
            scores = evaluate(trainee, course) or {}
            row |= {k: v for k, v in scores.items() if isinstance(v, float)}
            trainee.progress = replace(trainee.progress, best_ap=max(trainee.progress.best_ap, scores.get("ap", -1.0)))
        if course.place.is_first:
            log(course.folder, row)
            if last or (epoch + 1) % settings.checkpoint_every_epochs == 0:
                save(trainee, course.folder)
    ticker.close()
    return scores


def is_due(iteration: int, settings: TrainSettings, steps_per_epoch: int) -> bool:
    """Whether a checkpoint is due within an epoch; at its end there is another rule."""
    every = settings.checkpoint_every_iterations
    return bool(every) and iteration % every == 0 and iteration % steps_per_epoch != 0


def add_time(trainee: Trainee, since: float) -> float:
    """Count the seconds since an instant as spent; returns the instant of now."""
    now = time.perf_counter()
    trainee.progress = replace(trainee.progress, elapsed_s=trainee.progress.elapsed_s + now - since)
    return now


def forward(wrapped: nn.Module, batch: Batch, centres_A2: Tensor, *, course: Course) -> Losses:
    """Losses of one micro-batch: pictures are normalised on the device, logits and losses are float32."""
    device = course.place.device
    images = normalised(batch.images_BHW3.to(device, non_blocking=True), course.geometry)
    if course.recipe.train.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    with autocast(device, course.recipe.train.precision):
        outputs = wrapped(images)
    return detection_loss(
        outputs,
        centres_A2,
        batch.objects_BM4.to(device),
        batch.labels_BM.to(device),
        valid_BM=batch.valid_BM.to(device),
    )


def normalised(images_BHW3: Tensor, geometry: Geometry) -> Tensor:
    """uint8 (B, H, W, 3) -> float32 (B, 3, H, W), the same arithmetic as Geometry.normalised."""
    scale, shift = (torch.from_numpy(v).to(images_BHW3.device) for v in geometry.scale_and_shift())
    return (images_BHW3.float() * scale + shift).permute(0, 3, 1, 2)


def step(trainee: Trainee, *, clip_norm: float) -> None:
    """Clip, step and average; an fp16 overflow skips the step and lowers the loss scale."""
    trainee.scaler.unscale_(trainee.optimizer)
    if clip_norm:
        nn.utils.clip_grad_norm_(trainee.model.parameters(), clip_norm)
    trainee.scaler.step(trainee.optimizer)
    trainee.scaler.update()
    trainee.optimizer.zero_grad(set_to_none=True)
    trainee.average.update(trainee.model)


def set_lr(optimizer: torch.optim.Optimizer, settings: TrainSettings, iteration: int, num_iterations: int) -> float:
    """Set and return the learning rate of `iteration`."""
    progress = iteration / num_iterations
    shape = (
        schedule.cosine(progress, final=settings.final_lr)
        if settings.schedule == "cosine"
        else schedule.step(progress, steps=settings.steps)
    )
    peak = schedule.scaled_lr(settings.lr, batch=settings.batch, lr_batch=settings.lr_batch)
    # A warm-up longer than a fifth of the training would leave nothing to warm up for.
    num_warmup = min(settings.warmup_iterations, num_iterations // 5)
    lr = peak * shape * schedule.warmup(iteration, num_iterations=num_warmup)
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def stop_if_not_finite(losses: Losses, batch: Batch, course: Course, iteration: int) -> None:
    """Raise UserError naming the step and the pictures where the loss is NaN or infinite."""
    if torch.isfinite(losses.total):
        return
    names = ", ".join(course.loader.name_of(index) for index in batch.indices)
    parts = f"score {losses.score:.3g}, dense score {losses.dense_score:.3g}, box {losses.box:.3g}"
    raise UserError(
        f"the loss is {losses.total.item()} at iteration {iteration} ({parts}); pictures: {names}",
        hint="lower train.lr, lengthen train.warmup_iterations, or check those labels; last.ckpt holds what was before",
    )


def evaluate(trainee: Trainee, course: Course) -> dict[str, Any] | None:
    """Scores of the weight average on the validation pictures; None away from the first rank."""
    average = trainee.average.model
    if course.place.world_size > 1:
        # Batch-norm statistics differ by rank; the first rank's are the ones that ship.
        for buffer in average.buffers():
            torch.distributed.broadcast(buffer, 0)
    deployed = DeployDetector(average, course.recipe.model.max_detections)
    batch = min(course.recipe.train.batch, 8)
    scores = scored(deployed, course.validation, course.geometry, place=course.place, batch=batch)
    if scores is not None:
        say(f"epoch {trainee.progress.epoch}: AP {scores['ap']:.4f}, AP50 {scores['ap50']:.4f}")
    return scores


def distributed(model: nn.Module, place: Placement) -> nn.Module:
    """The model itself, or wrapped so that gradients are averaged over the processes."""
    if place.world_size == 1:
        return model
    device_ids = [place.device.index] if place.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids)


def grouped(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """Lists of `size` consecutive micro-batches."""
    return (list(group) for group in zip(*[batches] * size, strict=True))


def epoch_row(epoch: int, mean_losses: Tensor, lr: float, began: float, num_images: int) -> dict[str, Any]:
    """One line of metrics.jsonl."""
    duration_s = time.perf_counter() - began
    dense, score, box = mean_losses.tolist()
    return {
        "epoch": epoch + 1,
        "lr": lr,
        "loss_dense_score": dense,
        "loss_score": score,
        "loss_box": box,
        "train_s": duration_s,
        "images_per_s": num_images / duration_s,
    }


def log(folder: Path, row: dict[str, Any]) -> None:
    """Append a row to metrics.jsonl and a sentence to log.txt."""
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    with (folder / "log.txt").open("a") as file:
        file.write("  ".join(f"{k} {v:.4g}" for k, v in row.items()) + "\n")


def save(trainee: Trainee, folder: Path) -> None:
    """Replace last.ckpt."""
    save_checkpoint(
        folder / LAST,
        trainee.progress,
        model=trainee.model,
        average=trainee.average,
        optimizer=trainee.optimizer,
        scaler=trainee.scaler,
    )


def resume(trainee: Trainee, folder: Path) -> None:
    """Restore the trainee from last.ckpt where there is one, and cut metrics.jsonl back to it."""
    path = folder / LAST
    if not path.is_file():
        for leftover in ("metrics.jsonl", "log.txt"):
            (folder / leftover).unlink(missing_ok=True)
        return
    trainee.progress = load_checkpoint(
        path, model=trainee.model, average=trainee.average, optimizer=trainee.optimizer, scaler=trainee.scaler
    )
    if rows := [row for row in read_metrics(folder) if row["epoch"] <= trainee.progress.epoch]:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write_bytes_atomically(folder / "metrics.jsonl", lines.encode())
    say(f"resuming after iteration {trainee.progress.iteration}, in epoch {trainee.progress.epoch + 1}")
