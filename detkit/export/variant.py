"""The graph of one compiled variant: batch and precision written in, compared with the exported graph."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from detkit.core.console import say
from detkit.core.errors import GateError, UserError
from detkit.core.files import read_json, write_json_atomically
from detkit.core.stage import Work
from detkit.export.parity import gate_tables, onnxruntime_outputs, table_difference
from detkit.export.precision import with_precision
from detkit.export.simplify import simplified

# A float16 graph is held to matched detections: confident ones must reappear, this close.
MATCH_SCORE = 0.3
MATCH_IOU = 0.9
MATCH_SHARE = 0.95
# Where the probe has no confident detection: largest difference of sorted scores, relative to their max.
SCORE_TOLERANCE = 0.1


def write_variant(work: Work) -> dict[str, Any]:
    """Write the variant's model.onnx and contract.json into `work.folder`; return what was compared.

    A batch above one is exported anew and must equal the batch-1 graph picture by picture. Reduced precision must
    return at least MATCH_SHARE of the confident detections with IoU of MATCH_IOU or more.
    """
    settings = work.recipe.compile
    source = work.run.folder("export/model.onnx")
    contract = read_json(work.run.folder("export/contract.json"))
    inputs = probe_inputs(work, contract)
    reference = onnxruntime_outputs(source, inputs)
    found: dict[str, Any] = {}
    batched = work.folder / "model.onnx"
    if settings.batch == 1:
        shutil.copyfile(source, batched)
    else:
        export_batch(work, batched, settings.batch)
        tolerance = work.recipe.export.tolerance
        hop = f"batch 1 -> batch {settings.batch}"
        actual = onnxruntime_outputs(batched, inputs)
        found[hop] = vars(gate_tables(actual, reference, tolerance=tolerance, hop=hop))
        contract["input"]["shape"][0] = contract["output"]["shape"][0] = settings.batch
    if settings.precision != "fp32":
        onnx.save(with_precision(onnx.load(batched), settings.precision), batched)
        actual = onnxruntime_outputs(batched, inputs)
        hop = f"fp32 -> {settings.precision}"
        found[hop] = matched(actual, reference, hop) | vars(table_difference(actual, reference, tolerance=0.01))
    write_json_atomically(work.folder / "contract.json", contract)
    return {"graph_differences": found, "graph_size_bytes": batched.stat().st_size}


def export_batch(work: Work, target: Path, batch: int) -> None:
    """Export the fused network again with a fixed batch, simplified like the batch-1 graph."""
    from detkit.export.onnx_export import onnx_from_model
    from detkit.models.files import load_model

    settings = work.recipe.export
    detector, card = load_model(work.run.folder("fuse"))
    raw = target.with_suffix(".raw.onnx")
    onnx.save(onnx_from_model(detector, card, batch=batch, opset=settings.opset, uint8_input=settings.uint8_input), raw)
    if settings.simplify and simplified(raw, target, timeout_s=settings.simplify_timeout_s).done:
        raw.unlink()
    else:
        raw.rename(target)


def probe_inputs(work: Work, contract: dict[str, Any]) -> np.ndarray:
    """Probe pictures as the graph takes them."""
    from detkit.data.geometry import Geometry

    path = work.run.folder("train/probe.npz")
    if not path.is_file():
        raise UserError(f"no {path}", hint="detkit train --resume")
    images = np.load(path)["images_u8"]
    return Geometry.from_dict(contract["geometry"]).normalised(images) if contract["input"]["normalised"] else images


def matched(actual_NK6: np.ndarray, expected_NK6: np.ndarray, hop: str) -> dict[str, Any]:
    """Share of confident expected detections that reappear with the same label; GateError where too few do."""
    num_confident, num_matched, worst_score = 0, 0, 0.0
    for actual, expected in zip(actual_NK6, expected_NK6, strict=True):
        for row in expected[expected[:, 4] >= MATCH_SCORE]:
            num_confident += 1
            same = actual[actual[:, 5] == row[5]]
            ious = iou(same[:, :4], row[:4])
            if len(same) and ious.max() >= MATCH_IOU:
                num_matched += 1
                worst_score = max(worst_score, abs(float(same[ious.argmax(), 4] - row[4])))
    if not np.isfinite(actual_NK6).all():
        raise GateError(f"{hop}: the graph returns values that are not finite on the probe", hint="--fp32")
    if num_matched < MATCH_SHARE * num_confident:
        raise GateError(f"{hop}: only {num_matched} of {num_confident} confident detections reappear", hint="--fp32")
    if not num_confident:
        say(f"{hop}: no detection of the probe reaches {MATCH_SCORE}; only the scores were compared")
        difference = np.abs(actual_NK6[..., 4] - expected_NK6[..., 4]).max() / expected_NK6[..., 4].max()
        if not difference <= SCORE_TOLERANCE:
            raise GateError(f"{hop}: scores differ by {difference:.3g} relative, more than {SCORE_TOLERANCE}", hint="--fp32")
    return {"num_confident": num_confident, "num_matched": num_matched, "worst_score_difference": worst_score}


def iou(boxes_N4: np.ndarray, box_4: np.ndarray) -> np.ndarray:
    """IoU (N,) of boxes xyxy with one box."""
    low, high = np.maximum(boxes_N4[:, :2], box_4[:2]), np.minimum(boxes_N4[:, 2:], box_4[2:])
    overlap = np.clip(high - low, 0, None).prod(1)
    areas = (boxes_N4[:, 2:] - boxes_N4[:, :2]).prod(1) + (box_4[2:] - box_4[:2]).prod()
    return overlap / np.maximum(areas - overlap, 1e-9)
