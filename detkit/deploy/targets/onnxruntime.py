"""ONNX Runtime on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.errors import UserError
from detkit.deploy.contract import Contract

ARTIFACT = "model.onnx"
INSTALL = "pip install detkit[train] or pip install onnxruntime"


class OnnxRuntimeRunner:
    """Runs `model.onnx`: `runner(inputs)` maps one fixed-size batch to the table (B, K, 6) float32."""

    def __init__(self, artifact: Path, contract: Contract, *, threads: int = 0) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise UserError(f"onnxruntime is not installed: {error}", hint=INSTALL) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(artifact), options, providers=["CPUExecutionProvider"])
        self._contract = contract

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        outputs: Any = self._session.run([self._contract.output_name], {self._contract.input_name: inputs})
        return outputs[0]

    def num_threads(self) -> int:
        """Threads of one call; 0 is the library's default, one per physical core."""
        return self._session.get_session_options().intra_op_num_threads

    def io(self) -> dict[str, Any]:
        """Names, types and shapes that the session reports."""
        names = {"tensor(float)": "float32", "tensor(uint8)": "uint8", "tensor(float16)": "float16"}
        rows = [*self._session.get_inputs(), *self._session.get_outputs()]
        return {row.name: [names.get(row.type, row.type), list(row.shape)] for row in rows}


def build(model: Path, folder: Path, settings: Any) -> dict[str, Any]:
    """Nothing to build: the graph is the artifact. Loading it proves that ONNX Runtime takes it."""
    return {"artifact": ARTIFACT, "execution_precision": execution(settings.precision)}


def execution(precision: str) -> str:
    """What the CPU kernels compute in."""
    return "float32" if precision == "fp32" else "float16 weights and tensors, float32 kernels between casts"
