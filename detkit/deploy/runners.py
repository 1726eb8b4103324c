"""Which library runs which artifact, and which of them this machine has."""

import importlib.util
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from detkit.core.errors import UserError
from detkit.deploy.contract import Contract
from detkit.deploy.targets.onnxruntime import OnnxRuntimeRunner
from detkit.deploy.targets.openvino import OpenVinoRunner


class Runner(Protocol):
    """Maps one batch of graph inputs to the table of detections (B, K, 6)."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray: ...

    def io(self) -> dict[str, Any]: ...

    def num_threads(self) -> int: ...


# Fastest first: `auto` takes the first whose library is installed.
RUNNERS: dict[str, tuple[str, type[Runner], str]] = {
    "openvino": ("openvino", OpenVinoRunner, "model.xml"),
    "onnxruntime": ("onnxruntime", OnnxRuntimeRunner, "model.onnx"),
}


def runnable_here(target: str) -> bool:
    """Whether artifacts of `target` can be executed on this machine by detkit."""
    return target in RUNNERS and importlib.util.find_spec(RUNNERS[target][0]) is not None


def target_for(wanted: str) -> str:
    """`wanted`, or for `auto` the best target that runs here. Raises UserError where none does."""
    if wanted != "auto":
        return wanted
    found = next((target for target in RUNNERS if runnable_here(target)), None)
    if found is None:
        raise UserError("this machine can run neither OpenVINO nor ONNX Runtime", hint="pip install detkit[openvino]")
    return found


def open_runner(folder: Path, target: str, contract: Contract, *, threads: int = 0) -> Runner:
    """A runner for the artifact in `folder`. Raises UserError where this machine cannot run it."""
    if target not in RUNNERS:
        raise UserError(
            f"a {target} engine needs an NVIDIA GPU and its runtime, which this machine lacks",
            hint="detkit compile --target openvino, then the same command with that variant",
        )
    _, runner, file_name = RUNNERS[target]
    path = folder / file_name
    if not path.is_file():
        raise UserError(f"no {path}", hint="detkit compile")
    return runner(path, contract, threads=threads)  # type: ignore[call-arg]
