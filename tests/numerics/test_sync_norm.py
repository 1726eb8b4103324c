"""Batch normalisation over processes against one process that holds the whole batch, in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from detkit.models.blocks import make_block
from detkit.models.sync_norm import SyncBatchNorm2d, _Normalise, norm_groups, synchronised

pytestmark = pytest.mark.slow
CHANNELS = 3
# Pictures of each process: unequal, and none on one of four.
SHARDS = {2: (3, 1), 4: (2, 0, 3, 1)}


def in_processes(work: Callable[..., Any], world_size: int, folder: Path, *arguments: Any) -> list[Any]:
    """What `work(rank, *arguments)` returned in each process of a gloo job."""
    mp.start_processes(one_process, (work, world_size, folder, arguments), nprocs=world_size, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world_size)]


def one_process(rank: int, work: Callable[..., Any], world_size: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
    torch.save(work(rank, *arguments), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def whole_batch(world_size: int) -> tuple[Tensor, Tensor]:
    """Pictures of mean 1e4 and deviation 1, and a gradient of the output, float64."""
    generator = torch.Generator().manual_seed(0)
    shape = (sum(SHARDS[world_size]), CHANNELS, 5, 4)
    # Numbers that float32 holds, so that both precisions normalise the same.
    x = (1e4 + torch.randn(shape, generator=generator)).double()
    return x, torch.randn(shape, generator=generator).double()


def norm(kind: torch.dtype) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(CHANNELS).to(kind)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([0.5, -2.0, 1.5]))
        made.bias.copy_(torch.tensor([1.0, 0.0, -3.0]))
    return made


def results(layer: nn.BatchNorm2d, x: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Output, gradients and state after one step of training."""
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(gradient)
    assert x.grad is not None and layer.weight.grad is not None and layer.bias.grad is not None
    state = {name: value.double() for name, value in layer.state_dict().items()}
    return {"y": y.detach(), "dx": x.grad, "dw": layer.weight.grad, "db": layer.bias.grad, **state}


def own_share(rank: int, world_size: int, kind: torch.dtype, group_size: int) -> dict[str, Tensor]:
    layer = norm(kind)
    assert synchronised(layer, norm_groups(group_size)) == 1
    x, gradient = (whole.split(SHARDS[world_size])[rank].to(kind) for whole in whole_batch(world_size))
    return results(layer, x, gradient)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("kind", "allowed"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_shares_equal_one_process_with_the_whole_batch(tmp_path: Path, world_size: int, kind: torch.dtype, allowed: float) -> None:
    found = in_processes(own_share, world_size, tmp_path, world_size, kind, world_size)
    # Centred before, because torch's own norm loses digits at a mean of 1e4; the output does not depend on the mean.
    x, gradient = whole_batch(world_size)
    expected = results(norm(torch.float64), x - 1e4, gradient)
    expected["running_mean"] += 0.1 * 1e4
    joined = {name: torch.cat([rank[name] for rank in found]).double() for name in ("y", "dx")}
    joined |= {name: torch.stack([rank[name].double() for rank in found]).sum(0) for name in ("dw", "db")}
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        joined[name] = found[0][name]
        assert all(torch.equal(rank[name], found[0][name]) for rank in found)
    # float64 holds 1e4 + noise to 2e-12 itself.
    allowed = max(allowed, 4e-12)
    for name, value in joined.items():
        difference = (value - expected[name]).abs().max() / expected[name].abs().max().clamp_min(1)
        assert difference <= allowed, f"{name}: {difference:.1e}"


def test_groups_equal_a_norm_of_each_group(tmp_path: Path) -> None:
    found = in_processes(own_share, 4, tmp_path, 4, torch.float64, 2)
    x, gradient = whole_batch(4)
    for first in (0, 2):
        rows = slice(sum(SHARDS[4][:first]), sum(SHARDS[4][: first + 2]))
        expected = results(norm(torch.float64), x[rows] - 1e4, gradient[rows])
        expected["running_mean"] += 0.1 * 1e4
        for name in ("y", "dx"):
            joined = torch.cat([rank[name] for rank in found[first : first + 2]])
            torch.testing.assert_close(joined, expected[name], rtol=1e-10, atol=1e-10)
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(found[first][name], expected[name], rtol=1e-10, atol=1e-10)


def block_share(rank: int, name: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    block = make_block(name, 4, 4, kernel_size=3, stride=1, statistics="exact").double()
    synchronised(block, None)
    x = torch.randn(6, 4, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = block(x.split((4, 2))[rank])
    return {"y": y.detach(), **{key: value.double() for key, value in block.state_dict().items()}}


@pytest.mark.parametrize("name", ["plain", "repvgg", "qarepvgg", "dbb", "orepa"])
def test_blocks_keep_their_branches_and_fuse_as_before(tmp_path: Path, name: str) -> None:
    found = in_processes(block_share, 2, tmp_path, name)
    torch.manual_seed(0)
    block = make_block(name, 4, 4, kernel_size=3, stride=1, statistics="exact").double()
    x = torch.randn(6, 4, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(torch.cat([rank["y"] for rank in found]), block(x).detach(), rtol=1e-10, atol=1e-10)
    block.load_state_dict({key: value for key, value in found[1].items() if key != "y"})
    torch.testing.assert_close(block.eval().fuse()(x), block(x), rtol=1e-9, atol=1e-9)


def nothing_at_all(rank: int) -> dict[str, Tensor]:
    layer = nn.BatchNorm2d(CHANNELS)
    synchronised(layer, None)
    with pytest.raises(ValueError, match="no process of the group has a value"):
        layer(torch.zeros(0, CHANNELS, 4, 4))
    for size in (0, 3, 4):
        with pytest.raises(ValueError, match=f"cannot be cut into groups of {size}"):
            norm_groups(size)
    half = layer.train()(torch.randn(2, CHANNELS, 4, 4).bfloat16())
    return {"y": half.detach().float(), "mean": layer.running_mean.double()}  # type: ignore[union-attr]


def test_half_precision_keeps_single_precision_statistics_and_empty_groups_are_refused(tmp_path: Path) -> None:
    found = in_processes(nothing_at_all, 2, tmp_path)
    assert torch.equal(found[0]["mean"], found[1]["mean"])
    assert float(found[0]["y"].std()) == pytest.approx(1, abs=0.3)


def checked(rank: int) -> dict[str, Tensor]:
    x = torch.randn(2, CHANNELS, 3, 2, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(CHANNELS, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda *inputs: _Normalise.apply(*inputs, 1e-5, None)[0], (x, weight, bias))
    return {"x": x.detach()}


def test_gradients_agree_with_finite_differences(tmp_path: Path) -> None:
    in_processes(checked, 1, tmp_path)


def test_subclasses_and_evaluation_are_left_alone() -> None:
    class Own(nn.BatchNorm2d):
        pass

    model = nn.Sequential(nn.BatchNorm2d(2), Own(2), nn.SyncBatchNorm(2))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert synchronised(model, None) == 1
    assert type(model[0]) is SyncBatchNorm2d and type(model[1]) is Own
    assert model.state_dict().keys() == state.keys()
    x = torch.randn(2, 2, 3, 3)
    assert torch.equal(model[0].eval()(x), nn.BatchNorm2d(2).eval()(x))
