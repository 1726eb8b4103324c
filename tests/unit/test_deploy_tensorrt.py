"""One path for all TensorRT versions, and sentences for what goes wrong; the real builder where it is installed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest

from detkit.core.errors import UserError
from detkit.deploy.targets import tensorrt
from tests.tiny import write_tiny

SETTINGS = {"optimization_level": 1, "workspace_mb": 64, "compute_capability": "8.9", "precision": "fp32"}


class FakeBuilder:
    """A stand-in for a library that does not install without NVIDIA's index; records what it is asked for."""

    asked: dict[str, Any]

    def __init__(self, logger: object) -> None:
        type(self).asked = {"cleared": []}

    def create_network(self, flags: int) -> SimpleNamespace:
        self.asked["flags"] = flags
        return SimpleNamespace(num_layers=0, num_inputs=0, num_outputs=0)

    def create_builder_config(self) -> SimpleNamespace:
        return SimpleNamespace(set_memory_pool_limit=lambda *_: None, clear_flag=self.asked["cleared"].append)

    def build_serialized_network(self, network: object, config: SimpleNamespace) -> bytes:
        return b"plan"


def library(version: str, flags: dict[str, int], builder_flags: dict[str, int], builder: Any = FakeBuilder) -> ModuleType:
    module = ModuleType("tensorrt")
    logger = type("Logger", (), {"INFO": 3, "__init__": lambda self, level: None})
    parser = type("OnnxParser", (), {"__init__": lambda self, *_: None, "parse": lambda self, content: True})
    module.__dict__.update(
        __version__=version,
        Logger=logger,
        Builder=builder,
        OnnxParser=parser,
        NetworkDefinitionCreationFlag=SimpleNamespace(**flags),
        BuilderFlag=SimpleNamespace(**builder_flags),
        MemoryPoolType=SimpleNamespace(WORKSPACE=0),
    )
    return module


@pytest.mark.parametrize(
    ("version", "builder_flags"),
    [("10.3.0", {"FP16": 0, "TF32": 7}), ("10.16.1", {"FP16": 0, "TF32": 7}), ("11.4.1", {"TF32": 7})],
)
def test_every_supported_version_builds_a_strongly_typed_network_without_precision_flags(
    version: str, builder_flags: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = library(version, {"STRONGLY_TYPED": 1}, builder_flags)
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    engine, facts, _ = tensorrt.built_engine("tensorrt", write_tiny(tmp_path) / "model.onnx", SETTINGS)
    assert engine == b"plan" and facts["tool_version"] == version
    # The fake's configuration has no set_flag: asking for FP16 the old way would fail.
    assert FakeBuilder.asked == {"flags": 2, "cleared": [7]}


def test_versions_before_strong_typing_are_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", library("8.6.2", {"EXPLICIT_BATCH": 0}, {"FP16": 0, "TF32": 7}))
    with pytest.raises(UserError, match=r"TensorRT 8\.6\.2 cannot take the precision from the graph") as caught:
        tensorrt.built_engine("tensorrt", tmp_path / "model.onnx", SETTINGS)
    assert "JetPack" in caught.value.hint


def test_a_builder_without_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def builder(logger: object) -> None:
        raise TypeError("pybind11::init(): factory function returned nullptr")

    monkeypatch.setitem(sys.modules, "tensorrt", library("10.3.0", {"STRONGLY_TYPED": 1}, {"TF32": 7}, builder))
    with pytest.raises(UserError, match="found no usable one") as caught:
        tensorrt.built_engine("tensorrt", tmp_path / "model.onnx", SETTINGS)
    assert "--target rtx" in caught.value.hint


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="tensorrt is installed")
def test_a_missing_library_names_its_installation(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tensorrt is not installed") as caught:
        tensorrt.build(tmp_path / "model.onnx", tmp_path, SimpleNamespace(target="tensorrt", **SETTINGS))
    assert "pip install tensorrt" in caught.value.hint


def test_the_childs_last_words_become_the_message() -> None:
    told = tensorrt.failure("rtx", 1, ["[TRT] noise", "error: node 'a/B' (C) does not parse: no", "hint: try D"])
    assert (told.what, told.hint) == ("rtx: node 'a/B' (C) does not parse: no", "try D")
    killed = tensorrt.failure("rtx", -9, ["[TRT] tactic 7"])
    assert killed.what == "rtx: the builder ended with status -9: [TRT] tactic 7" and killed.hint


def test_a_node_that_does_not_parse_is_named_by_the_real_builder(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    model = onnx.load(write_tiny(tmp_path) / "model.onnx")
    model.graph.node[1].op_type = "NoSuchOperator"
    model.graph.node[1].name = "neck.odd/NoSuchOperator"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(UserError, match=r"neck\.odd/NoSuchOperator"):
        tensorrt.build(tmp_path / "model.onnx", tmp_path, SimpleNamespace(target="rtx", **SETTINGS))
