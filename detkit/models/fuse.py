"""Turn a trained network into the one that ships: blocks become convolutions, norms disappear, training parts go."""

import copy

import torch
from torch import Tensor, nn

EXAMPLE_SIDE_PX = 64


def fused(model: nn.Module) -> nn.Module:
    """A copy of `model` in evaluation mode with every block and every convolution-norm pair as one convolution.

    Any module with a method `fuse()` is replaced by what that returns; the walk knows nothing of blocks. Modules with
    `without_training_parts()` drop theirs. The input is left alone; fusing a fused model changes nothing.
    """
    copied = copy.deepcopy(model).eval()
    without_training_parts(copied)
    if hasattr(copied, "fuse"):
        return copied.fuse()  # type: ignore[operator]
    replace_blocks(copied)
    fold_norms(copied)
    return copied


def without_training_parts(model: nn.Module) -> list[str]:
    """Drop the parts that only training needs, in place; return their dotted names."""
    removed = []
    for name, module in list(model.named_modules()):
        drop = getattr(module, "without_training_parts", None)
        if drop is not None:
            removed += [f"{name}.{part}" for part in drop()]
    return removed


def replace_blocks(module: nn.Module) -> None:
    """Replace every descendant that can fuse itself, in place."""
    for name, child in module.named_children():
        if hasattr(child, "fuse"):
            setattr(module, name, child.fuse())  # type: ignore[operator]
        else:
            replace_blocks(child)


def fold_norms(model: nn.Module) -> None:
    """Fold batch norms into the convolutions whose output they read, in place, as seen on one example picture."""
    for conv_name, norm_name in conv_norm_pairs(model):
        conv, norm = model.get_submodule(conv_name), model.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        set_submodule(model, conv_name, conv_with_norm(conv, norm))
        set_submodule(model, norm_name, what_norm_leaves(norm))


def conv_norm_pairs(model: nn.Module) -> list[tuple[str, str]]:
    """Names (convolution, norm) where the norm's input is that convolution's output and each runs once."""
    produced: dict[int, str] = {}
    pairs: list[tuple[str, str]] = []
    runs: dict[str, int] = {}
    alive: list[Tensor] = []

    def watch(name: str, module: nn.Module) -> None:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            runs[name] = runs.get(name, 0) + 1
            if isinstance(module, nn.Conv2d):
                produced[id(output)] = name
                alive.append(output)  # keeps the id from being used again
            elif id(inputs[0]) in produced:
                pairs.append((produced[id(inputs[0])], name))

        handles.append(module.register_forward_hook(hook))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
            watch(name, module)
    if not any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
        return []
    first = next(model.parameters())
    try:
        with torch.no_grad():
            model(torch.zeros(1, 3, EXAMPLE_SIDE_PX, EXAMPLE_SIDE_PX, device=first.device, dtype=first.dtype))
    finally:
        for handle in handles:
            handle.remove()
    return [(conv, norm) for conv, norm in pairs if runs[conv] == 1 and runs[norm] == 1]


def conv_with_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """One convolution equal to `conv` followed by `norm` in evaluation; folded in float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    bias = -norm.running_mean.double() if conv.bias is None else conv.bias.double() - norm.running_mean.double()
    shift = 0.0 if norm.bias is None else norm.bias.double()
    folded = copy.deepcopy(conv)
    with torch.no_grad():
        folded.weight.copy_(conv.weight.double() * scale.view(-1, 1, 1, 1))
        folded.bias = nn.Parameter((bias * scale + shift).to(conv.weight))
    return folded


def what_norm_leaves(norm: nn.BatchNorm2d) -> nn.Module:
    """What remains of a norm layer once its affine part is folded: timm's carry an activation, torch's nothing."""
    activation = getattr(norm, "act", None)
    return activation if isinstance(activation, nn.Module) else nn.Identity()


def set_submodule(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, new)


def untouched_norms(model: nn.Module) -> list[str]:
    """Norms that never saw a batch, whose statistics are therefore not those of any data."""
    norms = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    return [n for n, m in norms if m.num_batches_tracked is not None and int(m.num_batches_tracked) == 0]
