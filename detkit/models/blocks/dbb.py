"""The diverse-branch block (Ding et al., CVPR 2021): many branches in training, one convolution when fused."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detkit.models.blocks.kernels import (
    ConvShape,
    Moments,
    at_least_single,
    average_kernel,
    batch_moments,
    grown,
    identity_kernel,
    one_then_k,
    running_moments,
    update_running,
    with_norm,
)
from detkit.models.blocks.repvgg import branch_conv, point_conv

SAMPLED_FRACTION = 4


class DiverseBranchBlock(nn.Module):
    """Sum of normed branches: (B, in, H, W) -> (B, out, H', W').

    Branches: KxK; 1x1; 1x1 then KxK; 1x1 then average; identity where shapes allow. The two that start with a 1x1 get
    their zero padding before it, so what lies outside the picture reaches the second layer as the first norm's bias,
    in training as in evaluation, and folding is exact at the borders. Depthwise blocks drop the plain 1x1 and the 1x1
    before the average and double the middle channels. For a 1x1 kernel only KxK and identity are left.

    `statistics="sampled"` changes training only: branch statistics come from every fourth picture and the whole batch
    goes through one merged convolution. Parameters, evaluation and `fuse` are the same.
    """

    def __init__(self, shape: ConvShape, *, statistics: str = "exact") -> None:
        super().__init__()
        self.shape = shape
        self.statistics = statistics
        out, side, groups = shape.out_channels, shape.kernel_size, shape.groups
        self.big = branch_conv(shape)
        self.big_norm = nn.BatchNorm2d(out)
        self.identity_norm = nn.BatchNorm2d(shape.in_channels) if shape.keeps_shape else None
        self.has_small = side > 1
        self.has_point = self.has_small and not shape.is_depthwise
        if self.has_point:
            self.point = point_conv(shape)
            self.point_norm = nn.BatchNorm2d(out)
            self.average = nn.Conv2d(shape.in_channels, out, 1, groups=groups, bias=False)
            self.average_first_norm = nn.BatchNorm2d(out)
        if self.has_small:
            middle = shape.in_channels * (2 if shape.is_depthwise else 1)
            # The 1x1 is the identity plus a part that starts at zero and is learnt.
            self.first = nn.Parameter(torch.zeros(middle, shape.in_channels // groups, 1, 1))
            self.first_norm = nn.BatchNorm2d(middle)
            self.second = nn.Conv2d(middle, out, side, groups=groups, bias=False)
            self.second_norm = nn.BatchNorm2d(out)
            self.average_norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.statistics == "sampled":
            return self._merged_forward(x)
        y = self.big_norm(self.big(x))
        centre = self.shape.pointwise_input(x)
        if self.identity_norm is not None:
            y = y + self.identity_norm(centre)
        if self.has_point:
            y = y + self.point_norm(self.point(centre))
        if self.has_small:
            padded = F.pad(x, [self.shape.padding] * 4)
            inner = self.first_norm(F.conv2d(padded, self.first_kernel(x.dtype), groups=self.shape.groups))
            y = y + self.second_norm(self._unpadded(inner, self.second.weight))
            y = y + self.average_norm(self._averaged(padded))
        return y

    def first_kernel(self, dtype: torch.dtype) -> Tensor:
        """The learnt 1x1 with its identity, (M, in / groups, 1, 1)."""
        middle, groups = len(self.first), self.shape.groups
        if middle == self.shape.in_channels:
            identity = identity_kernel(middle, groups=groups, like=self.first)
        else:
            identity = torch.ones_like(self.first)
        return (self.first + identity).to(dtype)

    def fuse(self) -> nn.Conv2d:
        """The one convolution that equals this block in evaluation; folded in float64."""
        norms = {name: module for name, module in self.named_children() if isinstance(module, nn.BatchNorm2d)}
        weight, bias = self._folded({name: running_moments(norm) for name, norm in norms.items()})
        return self.shape.conv(weight, bias, like=self.big.weight)

    def _unpadded(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight.to(x.dtype), None, self.shape.stride, 0, self.shape.dilation, self.shape.groups)

    def _averaged(self, padded: Tensor) -> Tensor:
        """Average pooling of the padded input, after its own 1x1 and norm where there is one."""
        return self._pooled(self.average_first_norm(self.average(padded)) if self.has_point else padded)

    def _folded(self, moments: dict[str, Moments]) -> tuple[Tensor, Tensor]:
        """Kernel and bias of the whole block, given the moments of every norm, in their precision."""
        side, groups = self.shape.kernel_size, self.shape.groups
        weight, bias = with_norm(self.big.weight, self.big_norm, moments["big_norm"])
        parts = [(weight, bias)]
        if self.identity_norm is not None:
            kernel = identity_kernel(self.shape.in_channels, groups=groups, like=weight)
            parts.append(with_norm(kernel, self.identity_norm, moments["identity_norm"]))
        if self.has_point:
            parts.append(with_norm(self.point.weight, self.point_norm, moments["point_norm"]))
        if self.has_small:
            kernel, inner_bias = self._sequence(moments["first_norm"])
            parts.append(with_norm(kernel, self.second_norm, moments["second_norm"], inner_bias))
            kernel, inner_bias = self._average_kernel(moments.get("average_first_norm"), like=weight)
            parts.append(with_norm(kernel, self.average_norm, moments["average_norm"], inner_bias))
        return torch.stack([grown(w, side) for w, _ in parts]).sum(0), torch.stack([b for _, b in parts]).sum(0)

    def _sequence(self, first: Moments) -> tuple[Tensor, Tensor]:
        """1x1 with norm, then KxK, as one kernel and bias."""
        kind = first.mean.dtype
        weight, bias = with_norm(self.first_kernel(kind), self.first_norm, first)
        return one_then_k(weight, bias, self.second.weight.to(kind), groups=self.shape.groups)

    def _average_kernel(self, first: Moments | None, *, like: Tensor) -> tuple[Tensor, Tensor]:
        """1x1 with norm where there is one, then the average, as one kernel and bias."""
        out, side, groups = self.shape.out_channels, self.shape.kernel_size, self.shape.groups
        if first is None:
            return average_kernel(out, side, groups=groups, like=like), torch.zeros_like(like[:, 0, 0, 0])
        weight, bias = with_norm(self.average.weight, self.average_first_norm, first)
        return weight.expand(-1, -1, side, side) / side**2, bias

    def _merged_forward(self, x: Tensor) -> Tensor:
        """One convolution of the batch, normalised by statistics of every fourth picture."""
        sample = x[::SAMPLED_FRACTION]
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = self._folded(self._sampled_moments(at_least_single(sample)))
        return self.shape.convolve(x, weight.to(x.dtype), bias.to(x.dtype))

    def _sampled_moments(self, x: Tensor) -> dict[str, Moments]:
        """Moments of every norm's input on `x`, running statistics updated on the way."""
        found: dict[str, Moments] = {}

        def measure(name: str, values: Tensor) -> None:
            found[name] = batch_moments(values)
            update_running(getattr(self, name), found[name], values.numel() // values.shape[1])

        centre = self.shape.pointwise_input(x)
        kernels, offsets = [self.big.weight], [torch.zeros_like(self.big.weight[:, 0, 0, 0])]
        names = ["big_norm"]
        if self.identity_norm is not None:
            measure("identity_norm", centre)
        if self.has_point:
            measure("point_norm", self.point(centre))
        if self.has_small:
            padded = F.pad(x, [self.shape.padding] * 4)
            measure("first_norm", F.conv2d(padded, self.first_kernel(x.dtype), groups=self.shape.groups))
            if self.has_point:
                inner = self.average(padded)
                measure("average_first_norm", inner)
                weight, bias = with_norm(self.average.weight, self.average_first_norm, found["average_first_norm"])
                padded = F.conv2d(padded, weight, bias, groups=self.shape.groups)
            measure("average_norm", self._pooled(padded))
            kernel, inner_bias = self._sequence(found["first_norm"])
            kernels.append(kernel)
            offsets.append(inner_bias)
            names.append("second_norm")
        for name, kernel, offset in zip(names, kernels, offsets, strict=True):
            measure(name, self.shape.convolve(x, kernel, offset))
        return found

    def _pooled(self, padded: Tensor) -> Tensor:
        channels = padded.shape[1]
        if self.shape.dilation == 1:
            return F.avg_pool2d(padded, self.shape.kernel_size, self.shape.stride)
        kernel = average_kernel(channels, self.shape.kernel_size, groups=channels, like=padded)
        return F.conv2d(padded, kernel, None, self.shape.stride, 0, self.shape.dilation, channels)
