"""The exported, simplified, batched and float16 graphs against torch, in ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from detkit.core.errors import GateError, UserError
from detkit.export.onnx_export import onnx_from_model
from detkit.export.parity import gate_tables, onnxruntime_outputs, table_difference
from detkit.export.precision import tail_nodes, with_precision
from detkit.export.simplify import simplified
from detkit.models.build import build_detector
from detkit.models.deploy import DeployDetector, top_detections
from detkit.models.fuse import fused
from detkit.recipe.schema import ModelSettings

SIDE = 64


def card(rows: int = 20) -> dict[str, Any]:
    geometry = {"mean": [0.4, 0.45, 0.5], "std": [0.2, 0.25, 0.3]}
    return {"image_size_px": SIDE, "model": {"max_detections": rows}, "geometry": geometry}


@pytest.fixture(scope="module")
def detector() -> nn.Module:
    """A fused network with scores that differ enough to sort."""
    torch.manual_seed(0)
    model = build_detector(ModelSettings(block="repvgg"), 3)
    model.train()
    for _ in range(3):
        model(torch.randn(4, 3, SIDE, SIDE))
    with torch.no_grad():
        for tower in model.head.score:
            tower.predict.weight.normal_(std=0.5)
    return fused(model)


@pytest.fixture(scope="module")
def exported(detector: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    onnx.save(onnx_from_model(detector, card(), batch=1, opset=17, uint8_input=False), path)
    return path


def inputs(count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).random((count, 3, SIDE, SIDE), dtype=np.float32)


def expected(detector: nn.Module, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return DeployDetector(detector, 20).eval()(torch.from_numpy(images)).numpy()


def test_top_detections_equal_a_sort_over_all_pairs() -> None:
    generator = torch.Generator().manual_seed(1)
    scores, boxes = torch.randn(2, 30, 4, generator=generator), torch.rand(2, 30, 4, generator=generator) * 64
    table = top_detections(scores, boxes, max_detections=7)
    for image in range(2):
        pairs = sorted(((float(scores[image, a, c]), a, c) for a in range(30) for c in range(4)), reverse=True)[:7]
        wanted = [[*boxes[image, a].tolist(), 1 / (1 + np.exp(-s)), c] for s, a, c in pairs]
        np.testing.assert_allclose(table[image].numpy(), np.array(wanted), rtol=1e-5)


def test_graph_equals_torch_and_has_one_file_fixed_shapes_and_module_names(detector: nn.Module, exported: Path) -> None:
    images = inputs()
    gate_tables(onnxruntime_outputs(exported, images), expected(detector, images), tolerance=1e-4, hop="test")
    model = onnx.load(exported)
    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [1, 20, 6]
    assert list(exported.parent.iterdir()) == [exported]
    modules = dict(detector.named_modules())
    convs = [node.name.rpartition("/")[0] for node in model.graph.node if node.op_type == "Conv"]
    assert convs and all(name in modules for name in convs)


@pytest.mark.slow
def test_simplified_graph_is_smaller_and_equal(exported: Path, tmp_path: Path) -> None:
    target = tmp_path / "simple.onnx"
    assert simplified(exported, target, timeout_s=120).done
    images = inputs()
    gate_tables(onnxruntime_outputs(target, images), onnxruntime_outputs(exported, images), tolerance=1e-4, hop="test")
    assert len(onnx.load(target).graph.node) < len(onnx.load(exported).graph.node)


@pytest.mark.slow
def test_a_simplifier_that_hangs_or_fails_is_survived_and_named(exported: Path, tmp_path: Path) -> None:
    assert "took longer than" in simplified(exported, tmp_path / "a.onnx", timeout_s=0.01).reason
    torn = tmp_path / "torn.onnx"
    torn.write_bytes(exported.read_bytes()[:100])
    outcome = simplified(torn, tmp_path / "b.onnx", timeout_s=120)
    assert not outcome.done and "onnxsim ended with status" in outcome.reason
    assert not (tmp_path / "b.onnx").exists()


def test_a_batch_gives_each_picture_what_it_gets_alone(detector: nn.Module, exported: Path, tmp_path: Path) -> None:
    path = tmp_path / "b4.onnx"
    onnx.save(onnx_from_model(detector, card(), batch=4, opset=17, uint8_input=False), path)
    images = inputs(6)
    gate_tables(onnxruntime_outputs(path, images), onnxruntime_outputs(exported, images), tolerance=1e-4, hop="test")


def test_uint8_graph_normalises_like_the_geometry(detector: nn.Module, exported: Path, tmp_path: Path) -> None:
    from detkit.data.geometry import Geometry

    path = tmp_path / "u8.onnx"
    onnx.save(onnx_from_model(detector, card(), batch=1, opset=17, uint8_input=True), path)
    images = np.random.default_rng(1).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    geometry = Geometry(SIDE, mean=(0.4, 0.45, 0.5), std=(0.2, 0.25, 0.3))
    actual, wanted = onnxruntime_outputs(path, images), onnxruntime_outputs(exported, geometry.normalised(images))
    gate_tables(actual, wanted, tolerance=1e-4, hop="test")


def test_float16_graph_computes_convolutions_in_float16_and_the_tail_in_float32(exported: Path, tmp_path: Path) -> None:
    model = onnx.load(exported)
    half = with_precision(model, "fp16")
    path = tmp_path / "half.onnx"
    onnx.save(half, path)
    weights = {t.name: t.data_type for t in half.graph.initializer}
    assert {weights[n.input[1]] for n in half.graph.node if n.op_type == "Conv"} == {onnx.TensorProto.FLOAT16}
    tail = {n.op_type for n in half.graph.node if n.name in tail_nodes(half)}
    assert {"TopK", "Sigmoid", "Softplus"} <= tail and "Resize" not in tail
    assert half.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    images = inputs()
    difference = table_difference(onnxruntime_outputs(path, images), onnxruntime_outputs(exported, images), tolerance=0.01)
    # Eleven bits of mantissa: close, but not equal, or nothing was converted.
    assert 0 < difference.scores < 0.02


def test_weights_beyond_float16_are_refused_by_name(exported: Path) -> None:
    model = onnx.load(exported)
    tensor = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 4)
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] = 1e5
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    with pytest.raises(UserError, match="reaches 1e"):
        with_precision(model, "fp16")


def table(*rows: tuple[float, ...]) -> np.ndarray:
    return np.array([rows], np.float32)


def test_rows_of_equal_score_may_swap_but_a_moved_box_may_not() -> None:
    one = table((0, 0, 10, 10, 0.9, 1), (5, 5, 9, 9, 0.9, 1), (2, 2, 3, 3, 0.5, 0), (0, 0, 1, 1, 0.1, 0))
    swapped = one[:, [1, 0, 2, 3]]
    assert table_difference(swapped, one, tolerance=1e-4).boxes == 0
    moved = one.copy()
    moved[0, 0, 2] = 10.5
    with pytest.raises(GateError, match=r"boxes of `detections` differ by 0\.05"):
        gate_tables(moved, one, tolerance=1e-4, hop="a -> b")
    for bad in (np.where(one == 0.9, np.nan, one), np.where(one == 0.9, 0.8, one)):
        with pytest.raises(GateError, match=r"scores|boxes"):
            gate_tables(bad, one, tolerance=1e-4, hop="a -> b")
    lost = one.copy()
    lost[0, 0, 0] = np.nan
    with pytest.raises(GateError, match="boxes"):
        gate_tables(lost, one, tolerance=1e-4, hop="a -> b")
    relabelled = one.copy()
    relabelled[0, 2, 5] = 2
    with pytest.raises(GateError, match="no equal partner"):
        gate_tables(relabelled, one, tolerance=1e-4, hop="a -> b")
