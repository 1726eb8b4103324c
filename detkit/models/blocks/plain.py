"""One convolution and its norm: the block without branches."""

from torch import Tensor, nn

from detkit.models.blocks.kernels import ConvShape, running_moments, with_norm


class PlainBlock(nn.Module):
    """Convolution and batch norm: (B, in, H, W) -> (B, out, H', W')."""

    def __init__(self, shape: ConvShape) -> None:
        super().__init__()
        self.shape = shape
        self.conv = nn.Conv2d(
            shape.in_channels,
            shape.out_channels,
            shape.kernel_size,
            stride=shape.stride,
            padding=shape.padding,
            dilation=shape.dilation,
            groups=shape.groups,
            bias=False,
        )
        self.norm = nn.BatchNorm2d(shape.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    def fuse(self) -> nn.Conv2d:
        """The one convolution that equals this block in evaluation; folded in float64."""
        weight, bias = with_norm(self.conv.weight, self.norm, running_moments(self.norm))
        return self.shape.conv(weight, bias, like=self.conv.weight)
