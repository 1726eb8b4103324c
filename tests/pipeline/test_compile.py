"""Building from a variant's model.onnx: what is kept, what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from detkit.core.errors import GateError
from detkit.core.files import read_json
from detkit.data.dataset import Dataset
from detkit.data.table import LabelledImage
from detkit.deploy.build import build_variant
from detkit.export.precision import with_precision
from tests.tiny import TABLE, write_tiny

MODULES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "rtx": "tensorrt_rtx"}


def settings(target: str, precision: str = "fp32") -> SimpleNamespace:
    fields: dict[str, Any] = {"optimization_level": 1, "workspace_mb": 64, "compute_capability": "8.9", "max_ap_drop": 0.005}
    return SimpleNamespace(target=target, precision=precision, **fields)


def labelled(folder: Path) -> Dataset:
    """One picture of the input's size on which the first two rows of TABLE are right."""
    path = folder / "picture.png"
    Image.fromarray(np.full((32, 32, 3), 60, np.uint8)).save(path)
    boxes = np.float32([row[:4] for row in TABLE[:2]])
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    image = LabelledImage(path, 1, 32, 32, boxes, np.int64([0, 1]), np.zeros(2, bool), areas)
    return Dataset((image,), ("disc", "box"), (3, 7), ())


def build(folder: Path, chosen: SimpleNamespace, **graph: Any) -> dict[str, Any]:
    reference = write_tiny(folder / "export")
    variant = write_tiny(folder / "variant", **graph)
    if chosen.precision == "fp16":
        onnx.save(with_precision(onnx.load(variant / "model.onnx"), "fp16"), variant / "model.onnx")
    return build_variant(variant, chosen, reference=reference, dataset=lambda: labelled(folder))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("target", list(MODULES))
def test_artifacts_are_built_read_back_and_scored(target: str, precision: str, tmp_path: Path) -> None:
    pytest.importorskip(MODULES[target])
    results = build(tmp_path, settings(target, precision))
    kind = {"fp32": "float32", "fp16": "float16"}[precision]
    assert results["graph"]["conv_share"] == {kind: 1.0}
    assert results["accuracy"]["ap"] == pytest.approx(1.0) and results["size_bytes"] > 0
    assert results["io"] == {"images": ["float32", [1, 3, 32, 32]], "detections": ["float32", [1, 3, 6]]}
    assert any("stem/Conv" in str(layer) for layer in read_json(tmp_path / "variant/layers.json"))
    if target == "openvino":
        assert results["read_back"]["conv_weight_types"] == [kind]
    if target == "rtx":
        assert results["execution_precision"] == kind
        assert "engine cannot run here" in results["accuracy"]["measured_on"]


@pytest.mark.parametrize("target", list(MODULES))
def test_a_float32_graph_asked_for_as_fp16_exits_3(target: str, tmp_path: Path) -> None:
    pytest.importorskip(MODULES[target])
    variant = write_tiny(tmp_path / "variant")
    with pytest.raises(GateError, match="in fp16, found float32") as caught:
        build_variant(variant, settings(target, "fp16"), reference=variant, dataset=lambda: labelled(tmp_path))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_an_artifact_that_loses_accuracy_exits_3_with_both_figures(target: str, tmp_path: Path) -> None:
    pytest.importorskip(MODULES[target])
    moved = [[x + 9, y, x2 + 9, y2, *rest] for x, y, x2, y2, *rest in TABLE]
    with pytest.raises(GateError, match=r"AP falls from 1\.0000 .* to 0\.0000") as caught:
        build(tmp_path, settings(target), table=moved)
    assert caught.value.exit_code == 3


def test_a_contract_that_promises_other_shapes_than_the_graph_has_exits_3(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    variant = write_tiny(tmp_path / "variant")
    (variant / "model.onnx").write_bytes((write_tiny(tmp_path / "other", batch=2) / "model.onnx").read_bytes())
    with pytest.raises(GateError, match="asked for images as"):
        build_variant(variant, settings("onnxruntime"), reference=variant, dataset=lambda: labelled(tmp_path))
