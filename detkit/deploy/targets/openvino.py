"""OpenVINO on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.errors import UserError
from detkit.deploy.contract import Contract
from detkit.deploy.signal_stack import signal_stack_kept

ARTIFACT = "model.xml"
INSTALL = "pip install detkit[openvino]"


def openvino() -> Any:
    """The library, or UserError saying how to get it."""
    try:
        import openvino as ov
    except ImportError as error:
        raise UserError(f"openvino is not installed: {error}", hint=INSTALL) from error
    return ov


class OpenVinoRunner:
    """Runs `model.xml`: `runner(inputs)` maps one fixed-size batch to the table (B, K, 6) float32.

    The CPU plugin would otherwise choose bfloat16 by itself where the processor has it, so the precision is always
    stated: float32, or float16 where the artifact is fp16 and the processor computes in it.
    """

    def __init__(self, artifact: Path, contract: Contract, *, threads: int = 0) -> None:
        ov = openvino()
        core = ov.Core()
        model = core.read_model(str(artifact))
        hint = {"float32": "f32", "float16": "f16"}[execution(core, half="f16" in weight_types(model))]
        settings: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": hint}
        if threads:
            settings["INFERENCE_NUM_THREADS"] = threads
        with signal_stack_kept():
            self._compiled = core.compile_model(model, "CPU", settings)
        # What was compiled, not what was asked for.
        kind = str(self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
        self.execution_precision = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}.get(kind, kind)
        self._request = self._compiled.create_infer_request()
        self._contract = contract

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        results = self._request.infer({self._contract.input_name: inputs})
        return results[self._contract.output_name]

    def num_threads(self) -> int:
        """Threads of one call, as the compiled model reports."""
        return int(self._compiled.get_property("INFERENCE_NUM_THREADS"))

    def io(self) -> dict[str, Any]:
        """Names, types and shapes that the compiled model reports."""
        names = {"f32": "float32", "u8": "uint8", "f16": "float16"}
        found = {}
        for port in [*self._compiled.inputs, *self._compiled.outputs]:
            kind = port.element_type.get_type_name()
            found[port.any_name] = [names.get(kind, kind), [int(d) for d in port.shape]]
        return found

    def layers(self) -> list[dict[str, str]]:
        """Layers as executed: name, type, precision, names of the nodes they came from."""
        rows = []
        for op in self._compiled.get_runtime_model().get_ordered_ops():
            info = op.get_rt_info()
            rows.append(
                {
                    "name": op.get_friendly_name(),
                    "type": rt_text(info, "layerType"),
                    "precision": rt_text(info, "runtimePrecision"),
                    "modules": rt_text(info, "originalLayersNames"),
                }
            )
        return rows


def rt_text(info: Any, key: str) -> str:
    return str(info[key].astype(str)) if key in info else ""


def execution(core: Any, *, half: bool) -> str:
    """What the CPU computes in: float16 needs a processor that has it (AVX512-FP16 or AMX-FP16)."""
    return "float16" if half and "FP16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "float32"


def build(model: Path, folder: Path, settings: Any) -> dict[str, Any]:
    """Convert `model.onnx` to OpenVINO's model.xml and model.bin; the graph's own precision is kept."""
    ov = openvino()
    converted = ov.convert_model(str(model))
    ov.save_model(converted, str(folder / ARTIFACT), compress_to_fp16=False)
    return {
        "artifact": ARTIFACT,
        "execution_precision": execution(ov.Core(), half=settings.precision == "fp16"),
    }


def weight_types(model: Any) -> set[str]:
    """Element types of the convolution weights of a read model, seen through conversions."""
    found = set()
    for op in model.get_ordered_ops():
        if op.get_type_name() != "Convolution":
            continue
        source = op.input_value(1).get_node()
        while source.get_type_name() == "Convert":
            source = source.input_value(0).get_node()
        found.add(source.get_output_element_type(0).get_type_name())
    return found
