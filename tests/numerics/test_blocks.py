"""Every block, fused, is the same function: compared in float64 against its own branches."""

import copy
import itertools

import pytest
import torch
from torch import nn

from detkit.models.blocks import BLOCKS, make_block
from detkit.models.blocks.dbb import SAMPLED_FRACTION, DiverseBranchBlock
from detkit.models.cost import cost_of
from detkit.models.fuse import fused

IN, OUT = 4, 8


def shaken(module: nn.Module, seed: int = 0) -> nn.Module:
    """Random norm statistics, affine parts and zero-initialised weights, in float64 and evaluation."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(like: torch.Tensor, low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(like.shape, generator=generator, dtype=torch.float64)

    module = module.double().eval()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.copy_(uniform(part.running_mean, -2, 2))
                part.running_var.copy_(uniform(part.running_var, 0.05, 3))
                part.weight.copy_(uniform(part.weight, -1.5, 1.5))
                part.bias.copy_(uniform(part.bias, -2, 2))
        for name, parameter in module.named_parameters():
            if name.endswith(("first", "scale")):
                parameter.copy_(uniform(parameter, -1, 1))
    return module


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).detach().abs().max() / expected.detach().abs().max())


CASES = list(itertools.product((1, 3, 5, 7), (1, 2), ("1", "2", "depthwise"), (1, 2), (None, 0, 1, 7)))


@pytest.mark.parametrize("name", BLOCKS)
def test_fused_block_equals_its_branches_for_any_kernel_stride_groups_dilation_and_padding(name: str) -> None:
    for kernel_size, stride, groups, dilation, padding in CASES:
        for out in {OUT, IN} if groups != "depthwise" else {IN}:
            block = shaken(
                make_block(
                    name,
                    IN,
                    out,
                    kernel_size=kernel_size,
                    stride=stride,
                    groups=IN if groups == "depthwise" else int(groups),
                    dilation=dilation,
                    padding=padding,
                )
            )
            x = torch.randn(2, IN, 14, 19, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            case = (name, kernel_size, stride, groups, dilation, padding, out)
            expected, folded = block(x), block.fuse()
            assert type(folded) is nn.Conv2d and folded.bias is not None, case
            assert relative(folded(x), expected) <= 1e-10, case
            reach = dilation * (kernel_size // 2)
            pad = reach if padding is None else padding
            height, width = ((s + 2 * pad - 2 * reach - 1) // stride + 1 for s in (14, 19))
            assert expected.shape == (2, out, height, width), case


def test_border_values_come_from_the_first_norms_bias() -> None:
    """The textbook trap: zero padding between the two layers is wrong at the border and right inside."""
    block = shaken(make_block("dbb", IN, IN))
    assert isinstance(block, DiverseBranchBlock)
    x = torch.randn(1, IN, 9, 11, dtype=torch.float64)
    inner = block.first_norm(nn.functional.conv2d(x, block.first_kernel(x.dtype)))
    naive = block.second_norm(nn.functional.conv2d(inner, block.second.weight, padding=1))
    bias = block.first_norm(torch.zeros(1, IN, 1, 1, dtype=torch.float64))
    framed = bias.expand(1, IN, 11, 13).clone()
    framed[:, :, 1:-1, 1:-1] = inner
    right = block.second_norm(nn.functional.conv2d(framed, block.second.weight))
    padded = nn.functional.pad(x, [1] * 4)
    ours = block.second_norm(
        block._unpadded(block.first_norm(nn.functional.conv2d(padded, block.first_kernel(x.dtype))), block.second.weight)
    )
    assert relative(ours, right) <= 1e-12
    assert relative(naive[..., 1:-1, 1:-1], right[..., 1:-1, 1:-1]) <= 1e-12
    assert relative(naive, right) > 0.01


def test_a_tiny_variance_folds_exactly() -> None:
    block = shaken(make_block("dbb", IN, IN))
    block.big_norm.running_var.fill_(1e-8)
    x = torch.randn(1, IN, 9, 11, dtype=torch.float64)
    assert relative(block.fuse()(x), block(x)) <= 1e-10


def test_diverse_branch_block_has_all_six_transforms() -> None:
    names = {n for n, m in make_block("dbb", IN, IN).named_children() if isinstance(m, nn.BatchNorm2d)}
    expected = {"big_norm", "point_norm", "first_norm", "second_norm", "average_first_norm", "average_norm"}
    assert names == expected | {"identity_norm"}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, IN])
@pytest.mark.parametrize("dilation", [1, 2])
def test_sampled_statistics_of_a_uniform_batch_equal_the_exact_block(stride: int, groups: int, dilation: int) -> None:
    """With every picture alike, a quarter of the batch has the whole batch's statistics."""
    torch.manual_seed(0)
    exact = make_block("dbb", IN, IN, stride=stride, groups=groups, dilation=dilation).double()
    sampled = copy.deepcopy(exact)
    sampled.statistics = "sampled"
    x = torch.randn(1, IN, 9, 12, dtype=torch.float64).repeat(SAMPLED_FRACTION, 1, 1, 1)
    expected, actual = exact.train()(x), sampled.train()(x)
    assert relative(actual, expected) <= 1e-10
    # A loss that a norm's output does not make trivially constant.
    weight = torch.randn_like(expected)
    grads = [torch.autograd.grad((y * weight).sum(), list(m.parameters())) for y, m in ((expected, exact), (actual, sampled))]
    for name, one, two in zip(dict(exact.named_parameters()), *grads, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-7, atol=1e-8, msg=name)
    for name, buffer in exact.named_buffers():
        # Unbiased variances differ by n / (n - 1) of the smaller sample.
        torch.testing.assert_close(dict(sampled.named_buffers())[name], buffer, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("name", BLOCKS)
def test_state_dict_round_trip_keeps_the_function(name: str) -> None:
    block, other = shaken(make_block(name, IN, OUT), 1), make_block(name, IN, OUT).double().eval()
    other.load_state_dict(block.state_dict())
    x = torch.randn(1, IN, 7, 9, dtype=torch.float64)
    assert torch.equal(other(x), block(x))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_blocks_run_in_half_precision(name: str, dtype: torch.dtype) -> None:
    block = make_block(name, IN, OUT).eval().to(dtype)
    assert block(torch.randn(1, IN, 8, 8).to(dtype)).dtype == dtype
    assert block.fuse().weight.dtype == dtype


@pytest.mark.parametrize("name", BLOCKS)
def test_training_forward_under_autocast_has_finite_gradients(name: str) -> None:
    block = make_block(name, IN, OUT).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        block(torch.randn(4, IN, 8, 8)).float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in block.parameters() if p.grad is not None)
    assert any(p.grad is not None for p in block.parameters())


class Net(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.body = nn.Sequential(make_block(name, 3, 6, stride=2), nn.ReLU(), make_block(name, 6, 6), nn.ReLU())
        self.tail = nn.Sequential(nn.Conv2d(6, 5, 1), nn.BatchNorm2d(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tail(self.body(x))


@pytest.mark.parametrize("name", BLOCKS)
def test_fusing_a_network_leaves_the_input_alone_and_is_idempotent(name: str) -> None:
    net = shaken(Net(name))
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(1, 3, 20, 26, dtype=torch.float64)
    once = fused(net)
    twice = fused(once)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert once.state_dict().keys() == twice.state_dict().keys()
    assert all(torch.equal(v, twice.state_dict()[k]) for k, v in once.state_dict().items())
    assert relative(once(x), net(x)) <= 1e-9
    assert not any(isinstance(m, nn.BatchNorm2d) for m in once.modules())


@pytest.mark.parametrize("name", BLOCKS)
def test_fused_cost_is_that_of_plain_convolutions(name: str) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1), nn.ReLU(), nn.Conv2d(6, 5, 1))
    assert cost_of(fused(shaken(Net(name)).float()), 64) == cost_of(plain, 64)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["timm:mobilenetv2_050", "torchvision:resnet18"])
def test_norms_of_borrowed_backbones_fold(source: str) -> None:
    from detkit.models.pretrained import feature_backbone

    network = shaken(feature_backbone(source, pretrained=""))
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_var.uniform_(0.5, 2)
            part.weight.data.uniform_(0.5, 1.5)
    x = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    folded = fused(network)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    for one, two in zip(folded(x), network(x), strict=True):
        assert relative(one, two) <= 1e-9
