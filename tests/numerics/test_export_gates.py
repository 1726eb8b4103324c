"""That the gates of export and precision see what they are there to see."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from detkit.core.errors import GateError, UserError
from detkit.export.parity import gate_tables, onnxruntime_outputs, table_difference
from detkit.export.precision import with_precision
from detkit.export.stage import proved_equal
from detkit.export.variant import matched
from tests.tiny import SIDE, TABLE, tiny_graph

ONE = np.array([TABLE], np.float32)


def changed(row: int, column: int, value: float) -> np.ndarray:
    table = ONE.copy()
    table[0, row, column] = value
    return table


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", range(6))
def test_a_value_that_is_not_finite_never_passes(column: int, value: float) -> None:
    with pytest.raises(GateError):
        gate_tables(changed(0, column, value), ONE, tolerance=1e-4, hop="a -> b")
    with pytest.raises(GateError, match="not finite"):
        matched(changed(0, column, value), ONE, "fp32 -> fp16")


@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-5])
def test_a_moved_box_is_seen_however_low_the_scores_are(scale: float) -> None:
    expected = ONE * np.float32([1, 1, 1, 1, scale, 1])
    assert table_difference(expected, expected, tolerance=1e-4).num_compared == 2
    moved = expected + np.float32([1, 0, 1, 0, 0, 0])
    with pytest.raises(GateError, match=r"boxes of `detections` differ by 0\.03"):
        gate_tables(moved, expected, tolerance=1e-4, hop="a -> b")


def test_a_table_of_ties_proves_nothing_and_says_so() -> None:
    ties = ONE.copy()
    ties[..., 4] = 0.01
    with pytest.raises(GateError, match="no box could be compared"):
        gate_tables(ties, ties, tolerance=1e-4, hop="a -> b")


def test_float16_without_confident_detections_is_held_to_its_scores() -> None:
    low = ONE * np.float32([1, 1, 1, 1, 0.1, 1])
    assert matched(low, low, "fp32 -> fp16")["num_confident"] == 0
    with pytest.raises(GateError, match="scores differ by 1 relative"):
        matched(low * np.float32([1, 1, 1, 1, 2, 1]), low, "fp32 -> fp16")


@pytest.mark.parametrize(("column", "value"), [(0, 15.0), (5, 1.0), (4, 0.2)])
def test_float16_that_loses_confident_detections_is_refused(column: int, value: float) -> None:
    if column == 4:
        # A lower score is a difference, not a loss; the AP gate weighs it.
        assert matched(changed(0, 4, value), ONE, "x")["worst_score_difference"] == pytest.approx(0.7)
        return
    with pytest.raises(GateError, match="only 1 of 2 confident detections reappear"):
        matched(changed(0, column, value), ONE, "fp32 -> fp16")


def test_a_simplified_graph_that_changed_or_does_not_load_gives_way(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    inputs = np.zeros((2, 3, SIDE, SIDE), np.float32)
    onnx.save(tiny_graph(TABLE), path)
    expected = onnxruntime_outputs(path, inputs)
    outcome, found = proved_equal(path, inputs, expected, 1e-4)
    assert outcome.done and found["ONNX -> simplified"]["boxes"] == 0
    onnx.save(tiny_graph(changed(0, 2, 25.0)[0].tolist()), path)
    outcome, found = proved_equal(path, inputs, expected, 1e-4)
    assert not outcome.done and "onnxsim changed the network: ONNX -> simplified: boxes" in outcome.reason and not found
    path.write_bytes(b"torn")
    outcome, _ = proved_equal(path, inputs, expected, 1e-4)
    assert not outcome.done and "ONNX Runtime does not take model.onnx" in outcome.reason


def around_conv(before: list[onnx.NodeProto], after: onnx.NodeProto, *constants: onnx.TensorProto) -> onnx.ModelProto:
    """x -> `before` -> a -> Conv -> y -> `after` -> z."""
    weight = numpy_helper.from_array(np.eye(2, dtype=np.float32)[..., None, None], "w")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 2, 2]) for name in "xz"]
    nodes = [*before, helper.make_node("Conv", ["a", "w"], ["y"], name="conv"), after]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight, *constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def constant(name: str, value: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.float32([value]), name)


def test_large_values_are_refused_where_they_become_float16_and_only_there() -> None:
    relu = helper.make_node("Relu", ["y"], ["z"], name="relu")
    node = helper.make_node("Constant", [], ["k"], name="k", value=constant("", 1e5))
    early = around_conv([node, helper.make_node("Mul", ["x", "k"], ["a"], name="mul")], relu)
    with pytest.raises(UserError, match=r"weight k reaches 1e\+05"):
        with_precision(early, "fp16")
    first = helper.make_node("Relu", ["x"], ["a"], name="first")
    late = around_conv([first], helper.make_node("Mul", ["y", "k"], ["z"], name="mul"), constant("k", 1e5))
    kept = {t.name: t.data_type for t in with_precision(late, "fp16").graph.initializer}
    assert kept == {"k": TensorProto.FLOAT, "w_fp16": TensorProto.FLOAT16}


def test_values_made_without_float_inputs_are_cast_where_float16_is_needed(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.int64([1, 2, 2, 2]), "shape")
    ones = helper.make_node("ConstantOfShape", ["shape"], ["o"], name="ones", value=constant("", 1.0))
    before = [ones, helper.make_node("Add", ["x", "o"], ["a"], name="add")]
    model = around_conv(before, helper.make_node("Relu", ["y"], ["z"], name="relu"), shape)
    path = tmp_path / "half.onnx"
    onnx.save(with_precision(model, "fp16"), path)
    inputs = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    np.testing.assert_array_equal(onnxruntime_outputs(path, inputs), inputs + 1)
