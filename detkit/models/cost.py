"""Parameters and multiply-accumulates of a network."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Cost:
    """`parameters` counts trainable and fixed weights, not buffers; `macs` one picture's multiply-accumulates."""

    parameters: int
    macs: int


def cost_of(model: nn.Module, image_size_px: int) -> Cost:
    """Cost of `model` in evaluation on one square picture, counted in convolutions and linear layers."""
    macs = 0

    def count(module: nn.Module, _: object, output: Tensor) -> None:
        nonlocal macs
        per_value = module.weight[0].numel() if isinstance(module, nn.Conv2d | nn.Linear) else 0
        macs += output.numel() * per_value

    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    handles = [layer.register_forward_hook(count) for layer in layers]
    was_training = model.training
    first = next(model.parameters())
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, 3, image_size_px, image_size_px, device=first.device, dtype=first.dtype))
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    return Cost(sum(p.numel() for p in model.parameters()), macs)
