"""An artifact of a few kilobytes: one convolution, then a table of detections that does not depend on it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from detkit.core.files import write_json_atomically
from detkit.data.geometry import Geometry

SIDE = 32
TABLE = [[4, 8, 20, 28, 0.9, 0], [1, 2, 6, 7, 0.5, 1], [0, 0, 3, 3, 0.1, 0]]


def tiny_graph(table: list[list[float]], *, batch: int = 1) -> onnx.ModelProto:
    """`images` (batch, 3, 32, 32) -> Conv -> mean * 0 + `table`."""
    weight = np.random.default_rng(0).standard_normal((6, 3, 3, 3)).astype(np.float32)
    constants = {"w": weight, "zero": np.float32([0]), "table": np.float32([table]), "shape": np.int64([batch, 1, 6])}
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["c"], name="stem/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], name="pool"),
        helper.make_node("Reshape", ["p", "shape"], ["r"], name="reshape"),
        helper.make_node("Mul", ["r", "zero"], ["m"], name="mul"),
        helper.make_node("Add", ["m", "table"], ["detections"], name="add"),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("detections", TensorProto.FLOAT, [batch, len(table), 6])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tiny_contract(num_rows: int, *, batch: int = 1) -> dict[str, Any]:
    return {
        "version": 1,
        "input": {"name": "images", "dtype": "float32", "shape": [batch, 3, SIDE, SIDE], "layout": "NCHW", "normalised": True},
        "output": {"name": "detections", "dtype": "float32", "shape": [batch, num_rows, 6]},
        "geometry": Geometry(SIDE).as_dict(),
        "classes": ["disc", "box"],
        "category_ids": [3, 7],
        "score_threshold": 0.25,
    }


def write_tiny(folder: Path, *, table: list[list[float]] = TABLE, batch: int = 1) -> Path:
    """model.onnx and contract.json in `folder`, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(tiny_graph(table, batch=batch), folder / "model.onnx")
    write_json_atomically(folder / "contract.json", tiny_contract(len(table), batch=batch))
    return folder
