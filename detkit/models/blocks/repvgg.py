"""RepVGG: KxK, 1x1 and identity branches, each with its norm (Ding et al., CVPR 2021)."""

from torch import Tensor, nn

from detkit.models.blocks.kernels import ConvShape, grown, identity_kernel, running_moments, with_norm


class RepVGGBlock(nn.Module):
    """Sum of normed branches: (B, in, H, W) -> (B, out, H', W'). For a 1x1 kernel the 1x1 branch is left out."""

    def __init__(self, shape: ConvShape) -> None:
        super().__init__()
        self.shape = shape
        self.big = branch_conv(shape)
        self.big_norm = nn.BatchNorm2d(shape.out_channels)
        has_point = shape.kernel_size > 1
        self.point = point_conv(shape) if has_point else None
        self.point_norm = nn.BatchNorm2d(shape.out_channels) if has_point else None
        self.identity_norm = nn.BatchNorm2d(shape.in_channels) if shape.keeps_shape else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.big_norm(self.big(x))
        centre = self.shape.pointwise_input(x)
        if self.point is not None and self.point_norm is not None:
            y = y + self.point_norm(self.point(centre))
        if self.identity_norm is not None:
            y = y + self.identity_norm(centre)
        return y

    def fuse(self) -> nn.Conv2d:
        """The one convolution that equals this block in evaluation; folded in float64."""
        side = self.shape.kernel_size
        weight, bias = with_norm(self.big.weight, self.big_norm, running_moments(self.big_norm))
        if self.point is not None and self.point_norm is not None:
            w, b = with_norm(self.point.weight, self.point_norm, running_moments(self.point_norm))
            weight, bias = weight + grown(w, side), bias + b
        if self.identity_norm is not None:
            kernel = identity_kernel(self.shape.in_channels, groups=self.shape.groups, like=weight)
            w, b = with_norm(kernel, self.identity_norm, running_moments(self.identity_norm))
            weight, bias = weight + grown(w, side), bias + b
        return self.shape.conv(weight, bias, like=self.big.weight)


def branch_conv(shape: ConvShape) -> nn.Conv2d:
    """The full-size convolution of a branch, without bias."""
    return nn.Conv2d(
        shape.in_channels,
        shape.out_channels,
        shape.kernel_size,
        stride=shape.stride,
        padding=shape.padding,
        dilation=shape.dilation,
        groups=shape.groups,
        bias=False,
    )


def point_conv(shape: ConvShape) -> nn.Conv2d:
    """The 1x1 convolution of a branch, without bias; its input comes from `shape.pointwise_input`."""
    return nn.Conv2d(shape.in_channels, shape.out_channels, 1, groups=shape.groups, bias=False)
