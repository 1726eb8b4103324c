"""What is read back from an artifact, and that a mismatch is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from detkit.core.errors import GateError, UserError
from detkit.core.files import read_json, write_json_atomically
from detkit.deploy.contract import read_contract
from detkit.deploy.proof import engine_facts, graph_facts, proved
from tests.tiny import write_tiny

IO = {"images": ["float32", [1, 3, 32, 32]], "detections": ["float32", [1, 3, 6]]}


def weights(folder: Path) -> np.ndarray:
    return next(onnx.numpy_helper.to_array(t) for t in onnx.load(folder / "model.onnx").graph.initializer if t.name == "w")


def prove(folder: Path, precision: str, target: str = "onnxruntime", **built: Any) -> dict[str, Any]:
    facts = {"artifact": "model.onnx", "io": IO, **built}
    return proved(folder, facts, read_contract(folder), target=target, precision=precision)


def test_graph_facts_count_multiplications_by_type(tmp_path: Path) -> None:
    facts = graph_facts(write_tiny(tmp_path) / "model.onnx")
    assert facts == {"conv_macs": {"float32": 6 * 32 * 32 * 27}, "conv_share": {"float32": 1.0}}


def test_a_float32_graph_passes_for_fp32_and_is_refused_for_fp16(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    assert prove(tmp_path, "fp32")["size_bytes"] == (tmp_path / "model.onnx").stat().st_size
    with pytest.raises(GateError, match="asked for convolutions of the graph in fp16, found float32") as caught:
        prove(tmp_path, "fp16")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "found"),
    [("images", ["float16", [1, 3, 32, 32]]), ("detections", ["float32", [1, 4, 6]]), ("images", None)],
)
def test_other_inputs_and_outputs_than_the_contracts_are_refused(name: str, found: Any, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    io = {k: v for k, v in (IO | {name: found}).items() if v}
    with pytest.raises(GateError, match=f"asked for {name} as"):
        prove(tmp_path, "fp32", io=io)


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_weights_are_found_in_an_engine_in_either_layout(kind: str, axes: tuple[int, ...], tmp_path: Path) -> None:
    write_tiny(tmp_path)
    body = np.ascontiguousarray(weights(tmp_path).astype(kind).transpose(axes)).tobytes()
    (tmp_path / "model.engine").write_bytes(b"head" + body + b"tail")
    facts = engine_facts(tmp_path / "model.engine", tmp_path / "model.onnx")
    assert facts == {"weights_found": {"float32": 0, "float16": 0} | {kind: 1}, "weights_looked_for": 1}


def test_an_engine_of_float16_weights_is_refused_where_float32_was_asked_whatever_its_network_said(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    built = {"artifact": "model.engine", "execution_precision": "float32"}
    (tmp_path / "model.engine").write_bytes(weights(tmp_path).astype(np.float16).tobytes())
    with pytest.raises(GateError, match="weights inside the engine in fp32, found float16"):
        prove(tmp_path, "fp32", "rtx", **built)
    with pytest.raises(GateError, match="parsed network in fp32, found float16 and float32"):
        prove(tmp_path, "fp32", "rtx", artifact="model.engine", execution_precision="float16 and float32")
    (tmp_path / "model.engine").write_bytes(b"")
    with pytest.raises(GateError, match="found an empty file"):
        prove(tmp_path, "fp32", "rtx", **built)


def test_a_contract_of_another_version_or_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no contract\.json"):
        read_contract(tmp_path)
    path = write_tiny(tmp_path) / "contract.json"
    write_json_atomically(path, read_json(path) | {"version": 99})
    with pytest.raises(UserError, match="has version 99, this detkit reads 1"):
        read_contract(tmp_path)
