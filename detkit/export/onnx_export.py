"""torch to ONNX: one file with the weights inside, fixed shapes, nodes named after modules."""

import io
import warnings
from typing import Any

import onnx
import torch
from torch import nn

from detkit.core.errors import UserError
from detkit.models.deploy import DeployDetector

INPUT = "images"
OUTPUT = "detections"


def onnx_from_model(detector: nn.Module, card: dict[str, Any], *, batch: int, opset: int, uint8_input: bool) -> onnx.ModelProto:
    """The deployment graph of `detector`: `images` -> `detections` (batch, K, 6), both float32 of fixed shape.

    `images` is normalised float32 (batch, 3, S, S), or uint8 RGB (batch, S, S, 3) with `uint8_input`. Raises UserError
    where an operator has no ONNX form.
    """
    side, geometry = card["image_size_px"], card["geometry"]
    normalisation = {"mean": tuple(geometry["mean"]), "std": tuple(geometry["std"])} if uint8_input else {}
    deployed = DeployDetector(detector, card["model"]["max_detections"], **normalisation).eval()
    example = torch.zeros(batch, side, side, 3, dtype=torch.uint8) if uint8_input else torch.zeros(batch, 3, side, side)
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # The exporter warns about its successor and about shapes that are constants on purpose.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                deployed,
                (example,),
                buffer,  # type: ignore[arg-type]
                dynamo=False,  # its node names are module paths
                opset_version=opset,
                input_names=[INPUT],
                output_names=[OUTPUT],
            )
        except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
            raise UserError(f"the network has no ONNX form at opset {opset}: {error}") from error
    model = onnx.load_model_from_string(buffer.getvalue())
    name_after_modules(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def name_after_modules(model: onnx.ModelProto) -> None:
    """Rename nodes from `/detector/neck/down.0/block/Conv` to `neck.down.0.block/Conv`, in place."""
    for index, node in enumerate(model.graph.node):
        scope, _, leaf = node.name.strip("/").rpartition("/")
        node.name = f"{module_name(scope) or 'output'}/{leaf or f'{node.op_type}_{index}'}"


def module_name(scope: str) -> str:
    """Dotted module name of an exporter scope, in which a container's child repeats the container's name."""
    parts: list[str] = []
    for part in scope.split("/"):
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return ".".join(parts[1:] if parts[0] == "detector" else parts)
