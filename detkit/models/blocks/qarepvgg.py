"""QARepVGG: RepVGG whose weights stay quantisable (Chu et al., AAAI 2024)."""

from torch import Tensor, nn

from detkit.models.blocks.kernels import ConvShape, grown, identity_kernel, running_moments, with_norm
from detkit.models.blocks.repvgg import branch_conv, point_conv


class QARepVGGBlock(nn.Module):
    """Normed KxK branch, bare 1x1 and identity branches, and one norm after their sum: (B, in, H, W) -> (B, out, H', W')."""

    def __init__(self, shape: ConvShape) -> None:
        super().__init__()
        self.shape = shape
        self.big = branch_conv(shape)
        self.big_norm = nn.BatchNorm2d(shape.out_channels)
        self.point = point_conv(shape) if shape.kernel_size > 1 else None
        self.norm = nn.BatchNorm2d(shape.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.big_norm(self.big(x))
        centre = self.shape.pointwise_input(x)
        if self.point is not None:
            y = y + self.point(centre)
        if self.shape.keeps_shape:
            y = y + centre
        return self.norm(y)

    def fuse(self) -> nn.Conv2d:
        """The one convolution that equals this block in evaluation; folded in float64."""
        side = self.shape.kernel_size
        weight, bias = with_norm(self.big.weight, self.big_norm, running_moments(self.big_norm))
        if self.point is not None:
            weight = weight + grown(self.point.weight.double(), side)
        if self.shape.keeps_shape:
            kernel = identity_kernel(self.shape.in_channels, groups=self.shape.groups, like=weight)
            weight = weight + grown(kernel, side)
        weight, bias = with_norm(weight, self.norm, running_moments(self.norm), bias)
        return self.shape.conv(weight, bias, like=self.big.weight)
