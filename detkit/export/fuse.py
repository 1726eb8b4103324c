"""The fuse stage: every block becomes one convolution, proved on the probe in float64 and float32."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from detkit.core.errors import GateError, UserError
from detkit.core.stage import Work
from detkit.data.geometry import Geometry
from detkit.models.cost import cost_of
from detkit.models.files import load_model, save_model
from detkit.models.fuse import fused, untouched_norms, without_training_parts

RAW_OUTPUTS = ("scores_BAC", "boxes_BA4")


def fuse_stage(work: Work) -> dict[str, Any]:
    """Fuse the trained model into `work.folder` and return costs, differences and what was removed.

    Raises GateError naming the output and the first diverging layer where the outputs differ by more than
    `fuse.tolerance_float64` or `fuse.tolerance_float32`, relative to the largest absolute output.
    """
    source = work.run.folder("train")
    model, card = load_model(source)
    if untouched := untouched_norms(without_dropped_parts(model)):
        raise UserError(
            f"{len(untouched)} norms never saw a batch ({untouched[0]}, ...), so their statistics mean nothing",
            hint="train for at least one iteration",
        )
    if card["fused"]:
        raise UserError(f"{source} already holds a fused model", hint="detkit train RECIPE")
    plain = fused(model)
    probe = np.load(source / "probe.npz")
    inputs = torch.from_numpy(Geometry.from_dict(card["geometry"]).normalised(probe["images_u8"]))
    settings = work.recipe.fuse
    found = {
        # Fused in float64 too: this holds the algebra to account, the float32 line the weights as they are stored.
        "float64": gated(model, fused(copy.deepcopy(model).double()), inputs.double(), settings.tolerance_float64),
        "float32": gated(model, plain, inputs, settings.tolerance_float32),
    }
    save_model(work.folder, plain, card | {"fused": True})
    before, after = cost_of(model, card["image_size_px"]), cost_of(plain, card["image_size_px"])
    return {
        "max_relative_difference": found,
        "tolerance": {"float64": settings.tolerance_float64, "float32": settings.tolerance_float32},
        "num_probe_images": len(inputs),
        "removed": without_training_parts(copy.deepcopy(model)),
        "parameters_before": before.parameters,
        "parameters": after.parameters,
        "macs_before": before.macs,
        "macs": after.macs,
    }


def without_dropped_parts(model: nn.Module) -> nn.Module:
    """A copy without the parts that fusing drops."""
    copied = copy.deepcopy(model)
    without_training_parts(copied)
    return copied


def gated(model: nn.Module, plain: nn.Module, inputs: Tensor, tolerance: float) -> dict[str, float]:
    """Largest difference of each raw output relative to its largest absolute value; raises GateError above `tolerance`."""
    first, second = copy.deepcopy(model).to(inputs.dtype).eval(), copy.deepcopy(plain).to(inputs.dtype).eval()
    with torch.no_grad():
        expected, actual = first(inputs), second(inputs)
    found = {name: relative_difference(actual[name], expected[name]) for name in RAW_OUTPUTS}
    for name, difference in found.items():
        # Not `difference > tolerance`: a NaN must fail too.
        if not difference <= tolerance:
            layer = first_diverging_layer(first, second, inputs[:1], tolerance)
            raise GateError(
                f"fused and trained model differ in {name} by {difference:.3g} relative ({inputs.dtype}), "
                f"more than {tolerance:.3g}; the first layer that diverges is {layer}",
                hint="--set fuse.tolerance_float64=... or fuse.tolerance_float32=... only with a reason",
            )
    return found


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference over the largest absolute expected value."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-300))


def first_diverging_layer(model: nn.Module, plain: nn.Module, inputs: Tensor, tolerance: float) -> str:
    """Dotted name of the first module, in order of execution, whose outputs differ in the two models."""
    expected, actual = traced(model, inputs), traced(plain, inputs)
    for name, value in expected.items():
        other = actual.get(name)
        if other is not None and other.shape == value.shape and not relative_difference(other, value) <= tolerance:
            return name
    return "none alone: the difference builds up over layers"


@torch.no_grad()
def traced(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Outputs of all modules that return one tensor, by dotted name, in order of execution."""
    found: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():

        def hook(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            if isinstance(output, Tensor):
                found[name] = output.clone()

        handles.append(module.register_forward_hook(hook))
    model(inputs)
    for handle in handles:
        handle.remove()
    return found
