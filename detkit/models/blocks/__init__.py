"""Trainable blocks that fuse to one convolution."""

from torch import nn

from detkit.models.blocks.dbb import DiverseBranchBlock
from detkit.models.blocks.kernels import ConvShape
from detkit.models.blocks.orepa import OREPABlock
from detkit.models.blocks.plain import PlainBlock
from detkit.models.blocks.qarepvgg import QARepVGGBlock
from detkit.models.blocks.repvgg import RepVGGBlock

BLOCKS: dict[str, type[nn.Module]] = {
    "plain": PlainBlock,
    "repvgg": RepVGGBlock,
    "qarepvgg": QARepVGGBlock,
    "orepa": OREPABlock,
    "dbb": DiverseBranchBlock,
}


def make_block(
    name: str,
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: int = 3,
    stride: int = 1,
    padding: int | None = None,
    dilation: int = 1,
    groups: int = 1,
    statistics: str = "exact",
) -> nn.Module:
    """A block of BLOCKS without activation: (B, in, H, W) -> (B, out, H', W').

    `padding` None keeps the size at stride 1. Raises ValueError for even kernels and groups that do not divide.
    """
    kept = dilation * (kernel_size // 2) if padding is None else padding
    shape = ConvShape(in_channels, out_channels, kernel_size, stride, kept, dilation, groups)
    if name == "dbb":
        return DiverseBranchBlock(shape, statistics=statistics)
    return BLOCKS[name](shape)
