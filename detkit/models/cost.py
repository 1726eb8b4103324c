"""Parameters and multiply-accumulates of a network."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    """`parameters` counts weights, not buffers; `macs` are one picture's multiply-accumulates."""

    parameters: int
    macs: int


def cost_of(model: nn.Module, image_size_px: int) -> Cost:
    """Cost of `model` in evaluation on one square picture, counted in the convolutions and products that torch runs."""
    first = next(model.parameters())
    image = torch.zeros(1, 3, image_size_px, image_size_px, device=first.device, dtype=first.dtype)
    was_training = model.training
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.eval()(image)
    finally:
        model.train(was_training)
    # The counter counts a multiplication and an addition as two.
    return Cost(sum(p.numel() for p in model.parameters()), counter.get_total_flops() // 2)
