"""Batch normalisation over the pictures of several processes (MegDet, Peng et al., CVPR 2018, section 3.3).

Parameters, buffers, evaluation and state dict are those of BatchNorm2d. Each process sends the count, mean and sum of
squared differences from its own mean in one gather, and all combine them (Chan et al., 1979): as stable as a second
round for the variance, since nothing is ever squared before it is centred.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# B images, C channels, H W height and width; statistics are float64, they are C numbers each.


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose training statistics are those of all processes of `group` (None for all of the job).

    (B, C, H, W) -> (B, C, H, W); B may differ between processes and be 0 on some, but not on all. Statistics are of at
    least single precision under autocast. In evaluation, or in a single process, it is BatchNorm2d.
    """

    group: dist.ProcessGroup | None = None

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not dist.is_initialized() or dist.get_world_size(self.group) == 1:
            return super().forward(input)
        self._check_input_dim(input)
        y, count, mean, variance = _Normalise.apply(input, self.weight, self.bias, self.eps, self.group)
        if self.track_running_stats:
            self._update(count, mean, variance)
        return y

    def _update(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics as BatchNorm2d does for one batch of `count` values a channel."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        factor = self.momentum if self.momentum is not None else 1.0 / self.num_batches_tracked.double()
        unbiased = variance * (count / (count - 1).clamp_min(1))
        for running, fresh in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.copy_(running.double().lerp(fresh, factor))


class _Normalise(torch.autograd.Function):
    """Output, count, mean and biased variance; the last three carry no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Any) -> Any:
        wide = x if x.dtype == torch.float64 else x.float()
        count, mean, variance = combined(*own_moments(wide), group=group)
        inverse = (variance + eps).rsqrt()
        ctx.save_for_backward(x, mean, inverse, weight)
        ctx.count, ctx.group, ctx.bias_kind = count, group, None if bias is None else bias.dtype
        y = normalised(wide, mean, inverse)
        if weight is not None and bias is not None:
            y = y * spread(weight, y) + spread(bias, y)
        ctx.mark_non_differentiable(count, mean, variance)
        return y.to(x.dtype), count, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean, inverse, weight = ctx.saved_tensors
        wide = x if x.dtype == torch.float64 else x.float()
        gradient = gradients[0].to(wide.dtype)
        hat = normalised(wide, mean, inverse)
        sums = torch.stack([gradient.sum((0, 2, 3)), (gradient * hat).sum((0, 2, 3))])
        own_bias, own_weight = sums.unbind()
        everywhere = sums.to(torch.float64, copy=True)
        dist.all_reduce(everywhere, group=ctx.group)
        mean_gradient, mean_product = (everywhere / ctx.count).unbind()
        scale = inverse if weight is None else inverse * weight.double()
        dx = (gradient - spread(mean_gradient, hat) - hat * spread(mean_product, hat)) * spread(scale, hat)
        if weight is None:
            return dx.to(x.dtype), None, None, None, None
        return dx.to(x.dtype), own_weight.to(weight.dtype), own_bias.to(ctx.bias_kind), None, None


def own_moments(x: Tensor) -> tuple[int, Tensor, Tensor]:
    """Count of values a channel, their mean (C,) and sum of squared differences from it (C,), of this process."""
    count = x.numel() // x.shape[1] if x.shape[1] else 0
    if not count:
        zeros = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
        return 0, zeros, zeros.clone()
    near = x.mean((0, 2, 3))
    centred = x - spread(near, x)
    # The first mean is rounded to the precision of x; what is left of it is small and therefore exact.
    rest = centred.mean((0, 2, 3)).double()
    squares = centred.square().sum((0, 2, 3)).double() - count * rest.square()
    return count, near.double() + rest, squares


def combined(count: int, mean: Tensor, squares: Tensor, *, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and biased variance (C,) of all processes of the group. Raises ValueError where they have no value."""
    own = torch.cat([torch.full((1,), float(count), dtype=torch.float64, device=mean.device), mean, squares])
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    rows = torch.stack(parts)
    counts, means, all_squares = rows[:, :1], rows[:, 1 : 1 + len(mean)], rows[:, 1 + len(mean) :]
    total = counts.sum()
    # Only a process without a value looks, since looking makes it wait for its GPU.
    if not count and not total:
        raise ValueError("no process of the group has a value to normalise by")
    # Around a mean that counts, so that large means do not cancel.
    pivot = means.index_select(0, counts.argmax(0))
    offset = (counts * (means - pivot)).sum(0) / total
    mean = (pivot + offset)[0]
    return total, mean, (all_squares + counts * (means - mean).square()).sum(0).clamp_min(0) / total


def normalised(x: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    """(x - mean) * inverse in the precision of x, without losing what x's precision cannot hold of the mean."""
    high = mean.to(x.dtype)
    low = ((mean - high.double()) * inverse).to(x.dtype)
    return (x - spread(high, x)) * spread(inverse, x) - spread(low, x)


def spread(values: Tensor, like: Tensor) -> Tensor:
    """(C,) as (1, C, 1, 1) of the other's precision."""
    return values.to(like.dtype).view(1, -1, 1, 1)


def synchronised(model: nn.Module, group: dist.ProcessGroup | None) -> int:
    """Make every BatchNorm2d of a model, and no subclass of it, normalise over `group`; returns how many there are.

    Parameters and buffers stay the objects that they are, so optimizers and state dicts go on with them.
    """
    found = [module for module in model.modules() if type(module) is nn.BatchNorm2d]
    for module in found:
        module.__class__ = SyncBatchNorm2d
        module.group = group  # type: ignore[assignment]
    return len(found)


def norm_groups(size: int) -> dist.ProcessGroup | None:
    """The group of `size` consecutive ranks that this process belongs to; all processes call this together.

    None means all of the job. Raises ValueError where the job cannot be cut into groups of that size.
    """
    world_size = dist.get_world_size()
    if not 1 <= size <= world_size or world_size % size:
        raise ValueError(f"{world_size} processes cannot be cut into groups of {size}")
    if size == world_size:
        return None
    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, world_size, size)]
    own = groups[dist.get_rank() // size]
    # torch gives a number in place of a group to ranks that are not in it.
    assert not isinstance(own, int)
    return own
