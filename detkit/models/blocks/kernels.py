"""The algebra of folding: every branch becomes one kernel and one bias, in the precision of its inputs."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# O output channels, I input channels per group, M middle channels, K kernel side.


@dataclass(frozen=True)
class ConvShape:
    """Geometry of the one convolution that a block becomes; kernel sides are odd."""

    in_channels: int
    out_channels: int
    kernel_size: int
    stride: int
    padding: int
    dilation: int
    groups: int

    def __post_init__(self) -> None:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {self.kernel_size}")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ValueError(f"{self.groups} groups do not divide {self.in_channels} -> {self.out_channels} channels")

    @property
    def reach(self) -> int:
        """Distance from the kernel's centre to its edge, px: the padding that keeps the size."""
        return self.dilation * (self.kernel_size // 2)

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.in_channels == self.out_channels and self.groups > 1

    @property
    def keeps_shape(self) -> bool:
        """Whether an identity branch fits: same channels and stride 1."""
        return self.in_channels == self.out_channels and self.stride == 1

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The full-size convolution with this geometry."""
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def pointwise_input(self, x: Tensor) -> Tensor:
        """What the big kernel's centre sees, position by position: `x` padded or cropped, then strided.

        Striding here and not in the 1x1 convolution is cheaper, and oneDNN's backward pass of a strided 1x1 on three
        channels in NHWC order corrupts memory (torch 2.14 on AVX2).
        """
        margin = self.padding - self.reach
        x = F.pad(x, [margin] * 4) if margin else x
        return x[..., :: self.stride, :: self.stride] if self.stride > 1 else x

    def conv(self, weight: Tensor, bias: Tensor, like: Tensor) -> nn.Conv2d:
        """A Conv2d holding `weight` and `bias`, in the type and on the device of `like`."""
        folded = nn.Conv2d(
            self.in_channels,
            self.out_channels,
            self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            device=like.device,
            dtype=like.dtype,
        )
        with torch.no_grad():
            folded.weight.copy_(weight)
            assert folded.bias is not None
            folded.bias.copy_(bias)
        return folded


@dataclass(frozen=True)
class Moments:
    """Per-channel mean and biased variance of a norm's input."""

    mean: Tensor
    var: Tensor


def running_moments(norm: nn.BatchNorm2d) -> Moments:
    """The moments that `norm` uses in evaluation, float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    return Moments(norm.running_mean.double(), norm.running_var.double())


def batch_moments(x: Tensor) -> Moments:
    """Moments of (B, C, H, W) over all but channels, in at least float32."""
    var, mean = torch.var_mean(at_least_single(x), dim=(0, 2, 3), correction=0)
    return Moments(mean, var)


def at_least_single(x: Tensor) -> Tensor:
    """Half-precision values as float32; others as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def with_norm(weight: Tensor, norm: nn.BatchNorm2d, moments: Moments, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Kernel and bias of convolution followed by `norm` with the given moments (transform I of DBB)."""
    kind = moments.mean.dtype
    factor = norm.weight.to(kind) / torch.sqrt(moments.var + norm.eps)
    offset = moments.mean if bias is None else moments.mean - bias
    return weight.to(kind) * factor.view(-1, 1, 1, 1), norm.bias.to(kind) - offset * factor


def one_then_k(first: Tensor, first_bias: Tensor, second: Tensor, *, groups: int) -> tuple[Tensor, Tensor]:
    """Kernel and bias of 1x1 (M, I, 1, 1) followed by KxK (O, M / groups, K, K) without padding between (transforms III, IV)."""
    merged, biases = [], []
    for w1, b1, w2 in zip(first.chunk(groups), first_bias.chunk(groups), second.chunk(groups), strict=True):
        merged.append(torch.einsum("omhw,mi->oihw", w2, w1[:, :, 0, 0]))
        biases.append(torch.einsum("omhw,m->o", w2, b1))
    return torch.cat(merged), torch.cat(biases)


def identity_kernel(channels: int, *, groups: int, like: Tensor) -> Tensor:
    """1x1 kernel (channels, channels / groups, 1, 1) that returns its input."""
    per_group = channels // groups
    index = torch.arange(channels, device=like.device)
    kernel = torch.zeros(channels, per_group, 1, 1, device=like.device, dtype=like.dtype)
    kernel[index, index % per_group] = 1.0
    return kernel


def average_kernel(channels: int, kernel_size: int, *, groups: int, like: Tensor) -> Tensor:
    """KxK kernel (channels, channels / groups, K, K) of average pooling, border zeros counted (transform V)."""
    return identity_kernel(channels, groups=groups, like=like).expand(-1, -1, kernel_size, kernel_size) / kernel_size**2


def grown(kernel: Tensor, kernel_size: int) -> Tensor:
    """A smaller odd kernel centred in a KxK one (transform VI)."""
    margin = (kernel_size - kernel.shape[-1]) // 2
    return F.pad(kernel, [margin] * 4)


def update_running(norm: nn.BatchNorm2d, moments: Moments, count: int) -> None:
    """What BatchNorm2d does to its running statistics for a batch of `count` values a channel."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    with torch.no_grad():
        unbiased = moments.var.detach() * (count / max(1, count - 1))
        momentum = 0.1 if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(moments.mean.detach().to(norm.running_mean), momentum)
        norm.running_var.lerp_(unbiased.to(norm.running_var), momentum)
        norm.num_batches_tracked.add_(1)
