"""detkit's own backbone: plain stages of fusable 3x3 blocks with features at strides 8, 16 and 32."""

from torch import Tensor, nn

from detkit.models.layers import BlockAct, BlockStyle

# Channels of the stem and of the stages at strides 4, 8, 16 and 32, and 3x3 blocks after each stage's first.
WIDTHS: dict[str, tuple[int, int, int, int, int]] = {
    "n": (16, 24, 48, 96, 160),
    "s": (24, 48, 96, 160, 256),
    "m": (32, 64, 128, 256, 384),
}
DEPTHS: dict[str, tuple[int, int, int, int]] = {"n": (0, 1, 2, 1), "s": (1, 2, 4, 2), "m": (1, 3, 6, 3)}


class PlainBackbone(nn.Module):
    """Strided and unit-stride 3x3 blocks only: (B, 3, H, W) -> features at strides 8, 16, 32.

    `channels` holds the three features' channel counts.
    """

    def __init__(self, size: str, *, style: BlockStyle) -> None:
        super().__init__()
        stem, *stages = WIDTHS[size]
        self.stem = BlockAct(3, stem, style=style, stride=2)
        self.stages = nn.ModuleList()
        previous = stem
        for width, depth in zip(stages, DEPTHS[size], strict=True):
            blocks = [BlockAct(previous, width, style=style, stride=2)]
            blocks += [BlockAct(width, width, style=style) for _ in range(depth)]
            self.stages.append(nn.Sequential(*blocks))
            previous = width
        self.channels = (stages[1], stages[2], stages[3])

    def forward(self, images_BCHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stages[0](self.stem(images_BCHW))
        p3 = self.stages[1](x)
        p4 = self.stages[2](p3)
        p5 = self.stages[3](p4)
        return p3, p4, p5
