"""The lines of training that depend on the device and on the number of processes."""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from detkit.core.errors import UserError

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Where this process computes, and its place among the processes of the job."""

    device: torch.device
    rank: int
    world_size: int

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def placement_from_environment() -> Placement:
    """Join the job that torchrun's variables describe, with NCCL on GPUs and gloo elsewhere; alone without them."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if world_size > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=30))
    return Placement(device, rank, world_size)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Mixed precision for the forward pass; a no-op for fp32."""
    half = HALF.get(precision, torch.bfloat16)
    return torch.autocast(device.type, dtype=half, enabled=precision != "fp32")


def grad_scaler(device: torch.device, precision: str) -> torch.amp.GradScaler:
    """Dynamic loss scale for fp16; passes everything through otherwise."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


def micro_batches(batch: int, *, world_size: int, max_batch_per_device: int) -> tuple[int, int]:
    """Per-device batch and accumulation steps whose product with `world_size` is the global `batch`.

    Raises UserError where the global batch does not divide over the processes.
    """
    if batch % world_size:
        raise UserError(
            f"train.batch is {batch}, which {world_size} processes cannot share equally",
            hint=f"--set train.batch={max(1, round(batch / world_size)) * world_size}",
        )
    per_device = batch // world_size
    steps = next(n for n in range(1, per_device + 1) if per_device % n == 0 and per_device // n <= max_batch_per_device)
    return per_device // steps, steps
