"""Checkpoints of a training in progress: tensors and plain types only, replaced atomically."""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from detkit.core.errors import UserError
from detkit.core.files import write_bytes_atomically
from detkit.train.ema import WeightAverage

LAST = "last.ckpt"


@dataclass(frozen=True)
class Progress:
    """Where a training stands: epochs finished, optimizer steps taken, seconds spent, best AP so far.

    `losses` are the sums of the losses over the steps of the epoch that is running.
    """

    epoch: int = 0
    iteration: int = 0
    elapsed_s: float = 0.0
    best_ap: float = -1.0
    losses: tuple[float, ...] = (0.0, 0.0, 0.0)


def save_checkpoint(
    path: Path,
    progress: Progress,
    *,
    model: nn.Module,
    average: WeightAverage,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Write everything that training needs to go on as if it had never stopped."""
    state = {
        "progress": vars(progress),
        "model": model.state_dict(),
        "average": average.model.state_dict(),
        "num_updates": average.num_updates,
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_bytes_atomically(path, buffer.getvalue())


def load_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    average: WeightAverage,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> Progress:
    """Restore all parts in place and return the progress. Raises UserError for a torn or foreign file."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        average.model.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, KeyError, ValueError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} cannot be resumed: {error}", hint="delete the file to train from the start") from error
    average.num_updates = state["num_updates"]
    scaler.load_state_dict(state["scaler"])
    torch.set_rng_state(state["rng"])
    return Progress(**state["progress"])
