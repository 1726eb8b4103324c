"""OREPA: branches without norms, merged into one kernel every step, one norm after (Hu et al., CVPR 2022)."""

import math

import torch
from torch import Tensor, nn

from detkit.models.blocks.kernels import (
    ConvShape,
    average_kernel,
    grown,
    identity_kernel,
    one_then_k,
    running_moments,
    with_norm,
)

# First values of the per-channel scales, from the paper's released settings.
BIG, AVERAGE, PRIOR, SEQUENCE, POINT = 0.25, 0.25, 0.0, 0.5, 1.0


class OREPABlock(nn.Module):
    """(B, in, H, W) -> (B, out, H', W') through one convolution with the sum of scaled kernels.

    Kernels: KxK, 1x1, 1x1 then average, 1x1 then KxK, and a fixed bank of cosines under a 1x1 (frequency prior). The
    sum is made in float32 whatever autocast says. For a 1x1 kernel only the KxK one is left.
    """

    prior_KK: Tensor

    def __init__(self, shape: ConvShape) -> None:
        super().__init__()
        self.shape = shape
        per_group = shape.in_channels // shape.groups
        side, out = shape.kernel_size, shape.out_channels
        self.big = kaiming(out, per_group, side)
        self.big_scale = scale(out, BIG)
        self.norm = nn.BatchNorm2d(out)
        self.register_buffer("prior_KK", cosine_bank(out, side))
        if side > 1:
            self.point, self.point_scale = kaiming(out, per_group, 1), scale(out, POINT)
            self.average, self.average_scale = kaiming(out, per_group, 1), scale(out, AVERAGE)
            self.prior, self.prior_scale = kaiming(out, per_group, 1), scale(out, PRIOR)
            self.first = nn.Parameter(torch.zeros(shape.in_channels, per_group, 1, 1))
            self.second, self.sequence_scale = kaiming(out, per_group, side), scale(out, SEQUENCE)

    def merged(self, dtype: torch.dtype) -> Tensor:
        """The one kernel (out, in / groups, K, K) of this step."""
        side, groups = self.shape.kernel_size, self.shape.groups
        weight = self.big.to(dtype) * self.big_scale.to(dtype)
        if side == 1:
            return weight
        weight = weight + grown(self.point.to(dtype) * self.point_scale.to(dtype), side)
        mean = average_kernel(1, side, groups=1, like=weight)
        weight = weight + self.average.to(dtype) * mean * self.average_scale.to(dtype)
        weight = weight + self.prior.to(dtype) * self.prior_KK.to(dtype) * self.prior_scale.to(dtype)
        first = self.first.to(dtype) + identity_kernel(self.shape.in_channels, groups=groups, like=weight)
        zero = torch.zeros(len(first), device=weight.device, dtype=dtype)
        sequence, _ = one_then_k(first, zero, self.second.to(dtype), groups=groups)
        return weight + sequence * self.sequence_scale.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            weight = self.merged(torch.float64 if x.dtype == torch.float64 else torch.float32)
        return self.norm(self.shape.convolve(x, weight.to(x.dtype)))

    def fuse(self) -> nn.Conv2d:
        """The one convolution that equals this block in evaluation; folded in float64."""
        weight, bias = with_norm(self.merged(torch.float64), self.norm, running_moments(self.norm))
        return self.shape.conv(weight, bias, like=self.big)


def kaiming(out_channels: int, in_channels: int, side: int) -> nn.Parameter:
    """A kernel drawn as nn.Conv2d draws it."""
    weight = torch.empty(out_channels, in_channels, side, side)
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return nn.Parameter(weight)


def scale(channels: int, value: float) -> nn.Parameter:
    return nn.Parameter(torch.full((channels, 1, 1, 1), value))


def cosine_bank(channels: int, side: int) -> Tensor:
    """Fixed kernels (channels, 1, K, K): cosines of rising frequency, first half along rows, second along columns."""
    half = max(1, channels // 2)
    frequency = (torch.arange(channels) % half + 1).view(-1, 1) / half
    position = torch.arange(side).view(1, -1) + 0.5
    wave = torch.cos(math.pi * frequency * position / side)
    rows = wave.unsqueeze(2).expand(-1, -1, side)
    columns = wave.unsqueeze(1).expand(-1, side, -1)
    is_row = (torch.arange(channels) < half).view(-1, 1, 1)
    return torch.where(is_row, rows, columns).unsqueeze(1).contiguous()
