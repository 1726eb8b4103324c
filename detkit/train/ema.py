"""Exponential moving average of weights: the model that is scored and shipped."""

import copy
import math

import torch
from torch import nn


class WeightAverage:
    """A copy of a model that follows its weights.

    The decay of update t is `decay * (1 - exp(-t / warmup_iterations))`, so early averages forget the random start.
    Buffers of integer type are copied. With `decay` 0 the copy equals the model.
    """

    def __init__(self, model: nn.Module, *, decay: float, warmup_iterations: int) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.warmup_iterations = warmup_iterations
        self.num_updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards `model`, in place."""
        self.num_updates += 1
        decay = self.decay * (1.0 - math.exp(-self.num_updates / self.warmup_iterations))
        mine, theirs = self.model.state_dict(), model.state_dict()
        floating = [k for k, v in mine.items() if v.dtype.is_floating_point]
        for key in floating:
            mine[key].lerp_(theirs[key].to(mine[key]), 1.0 - decay)
        for key in mine.keys() - set(floating):
            mine[key].copy_(theirs[key])
