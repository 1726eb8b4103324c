"""The one unit that stages, neck and head are made of: a fusable block followed by an activation."""

from dataclasses import dataclass

from torch import Tensor, nn

from detkit.models.blocks import make_block


@dataclass(frozen=True)
class BlockStyle:
    """Which trainable block stands behind every convolution, and how it normalises in training."""

    name: str = "plain"
    statistics: str = "exact"


class BlockAct(nn.Module):
    """A block that fuses to one convolution, then an activation: (B, in, H, W) -> (B, out, H / stride, W / stride).

    ReLU in the backbone, where it is cheap; SiLU (`smooth`) in neck and head. With ReLU there, a rare small class can
    end where every channel is zero: its score is then the bias alone and gets no gradient to leave it.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        style: BlockStyle,
        kernel_size: int = 3,
        stride: int = 1,
        smooth: bool = False,
    ) -> None:
        super().__init__()
        # A 1x1 convolution has nothing to gain from branches, so it is always plain.
        name = style.name if kernel_size > 1 else "plain"
        self.block = make_block(name, in_channels, out_channels, kernel_size=kernel_size, stride=stride, statistics=style.statistics)
        self.act = nn.SiLU() if smooth else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.block(x))
