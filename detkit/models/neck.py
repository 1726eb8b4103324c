"""A small pyramid neck: top-down then bottom-up, joined by addition so that nothing but 3x3 and 1x1 convolutions is left."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from detkit.models.layers import BlockAct, BlockStyle


class PyramidNeck(nn.Module):
    """Mixes three features in both directions: channels `in_channels` -> (`width`, `width`, `width`)."""

    def __init__(self, in_channels: Sequence[int], *, width: int, style: BlockStyle) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(BlockAct(c, width, style=style, smooth=True, kernel_size=1) for c in in_channels)
        self.down = nn.ModuleList(BlockAct(width, width, style=style, smooth=True, stride=2) for _ in range(2))
        self.mix_top_down = nn.ModuleList(BlockAct(width, width, style=style, smooth=True) for _ in range(2))
        self.mix_bottom_up = nn.ModuleList(BlockAct(width, width, style=style, smooth=True) for _ in range(2))

    def forward(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        c3, c4, c5 = (lateral(x) for lateral, x in zip(self.lateral, features, strict=True))
        t4 = self.mix_top_down[1](c4 + upsampled(c5))
        p3 = self.mix_top_down[0](c3 + upsampled(t4))
        p4 = self.mix_bottom_up[0](t4 + self.down[0](p3))
        p5 = self.mix_bottom_up[1](c5 + self.down[1](p4))
        return p3, p4, p5


def upsampled(x: Tensor) -> Tensor:
    """Double height and width by nearest neighbour."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
