"""The export stage: the fused network as a simplified ONNX graph with its contract, proved in ONNX Runtime."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from detkit.core.console import say
from detkit.core.errors import GateError
from detkit.core.files import write_json_atomically
from detkit.core.stage import Work
from detkit.data.geometry import Geometry
from detkit.export.onnx_export import INPUT, OUTPUT, onnx_from_model
from detkit.export.parity import gate_tables, onnxruntime_outputs
from detkit.export.simplify import Simplification, simplified
from detkit.models.deploy import DeployDetector
from detkit.models.files import load_model

CONTRACT_VERSION = 1
SCORE_THRESHOLD = 0.25


def export_stage(work: Work) -> dict[str, Any]:
    """Write model.unsimplified.onnx, model.onnx and contract.json; return sizes, node counts and differences.

    Gates: unsimplified graph against torch and simplified against unsimplified graph, on the probe, within
    `export.tolerance`.
    """
    settings = work.recipe.export
    detector, card = load_model(work.run.folder("fuse"))
    raw, final = work.folder / "model.unsimplified.onnx", work.folder / "model.onnx"
    model = onnx_from_model(detector, card, batch=1, opset=settings.opset, uint8_input=settings.uint8_input)
    onnx.save(model, raw)
    probe = np.load(work.run.folder("train/probe.npz"))
    inputs = graph_inputs(probe["images_u8"], card, uint8_input=settings.uint8_input)
    expected = torch_outputs(detector, card, probe["images_u8"])
    unsimplified = onnxruntime_outputs(raw, inputs)
    differences = {"torch -> ONNX": vars(gate(unsimplified, expected, settings.tolerance, "torch -> ONNX"))}
    outcome = simplify(raw, final, settings)
    if outcome.done:
        outcome, found = proved_equal(final, inputs, unsimplified, settings.tolerance)
        differences |= found
    if not outcome.done:
        say(f"export: the graph stays unsimplified: {outcome.reason}")
        shutil.copyfile(raw, final)
    write_json_atomically(work.folder / "contract.json", contract(card, batch=1, uint8_input=settings.uint8_input))
    return {
        "simplified": outcome.done,
        "simplifier": outcome.reason,
        "num_nodes_unsimplified": len(model.graph.node),
        "num_nodes": len(onnx.load(final).graph.node),
        "size_bytes": final.stat().st_size,
        "opset": settings.opset,
        "differences": differences,
        "tolerance": settings.tolerance,
        "num_probe_images": len(inputs),
    }


def simplify(raw: Path, final: Path, settings: Any) -> Simplification:
    if not settings.simplify:
        return Simplification(False, "export.simplify is false")
    return simplified(raw, final, timeout_s=settings.simplify_timeout_s)


def proved_equal(
    final: Path, inputs: np.ndarray, unsimplified: np.ndarray, tolerance: float
) -> tuple[Simplification, dict[str, dict[str, Any]]]:
    """Whether the simplified graph may be kept, and its differences; a graph that changed the network may not."""
    hop = "ONNX -> simplified"
    try:
        found = gate(onnxruntime_outputs(final, inputs), unsimplified, tolerance, hop)
    except GateError as error:
        return Simplification(False, f"onnxsim changed the network: {error.what}"), {}
    return Simplification(True, "simplified"), {hop: vars(found)}


def gate(actual: np.ndarray, expected: np.ndarray, tolerance: float, hop: str) -> Any:
    return gate_tables(actual, expected, tolerance=tolerance, hop=hop)


def graph_inputs(images_u8: np.ndarray, card: dict[str, Any], *, uint8_input: bool) -> np.ndarray:
    """What the graph takes for letterboxed pictures (N, S, S, 3)."""
    return images_u8 if uint8_input else Geometry.from_dict(card["geometry"]).normalised(images_u8)


@torch.no_grad()
def torch_outputs(detector: Any, card: dict[str, Any], images_u8: np.ndarray) -> np.ndarray:
    """Detections (N, K, 6) of the torch network, one picture at a time."""
    deployed = DeployDetector(detector, card["model"]["max_detections"]).eval()
    inputs = torch.from_numpy(Geometry.from_dict(card["geometry"]).normalised(images_u8))
    return torch.cat([deployed(inputs[i : i + 1]) for i in range(len(inputs))]).numpy()


def contract(card: dict[str, Any], *, batch: int, uint8_input: bool) -> dict[str, Any]:
    """Everything that must be known to feed the graph and to read its output."""
    side, rows = card["image_size_px"], card["model"]["max_detections"]
    shape = [batch, side, side, 3] if uint8_input else [batch, 3, side, side]
    return {
        "version": CONTRACT_VERSION,
        "input": {
            "name": INPUT,
            "dtype": "uint8" if uint8_input else "float32",
            "shape": shape,
            "layout": "NHWC" if uint8_input else "NCHW",
            "normalised": not uint8_input,
        },
        "output": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": [batch, rows, 6],
            "columns": ["x1", "y1", "x2", "y2", "score", "label"],
            "box_format": "xyxy, px of the network input, right and bottom exclusive",
            "order": "score, falling",
        },
        "geometry": card["geometry"],
        "classes": card["classes"],
        "category_ids": card["category_ids"],
        "score_threshold": SCORE_THRESHOLD,
    }
