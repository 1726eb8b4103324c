"""Read the artifact back and hold it to the request: precision, inputs, outputs, size."""

from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.errors import GateError
from detkit.deploy.contract import Contract

WANTED = {"fp32": {"float32"}, "fp16": {"float16"}}
# Convolution weights looked for in an engine: the largest, and none so small that chance could place its bytes there.
MOST_WEIGHTS = 32
FEWEST_VALUES = 64


def graph_facts(model: Path) -> dict[str, Any]:
    """Types of convolution weights and the share of multiply-accumulates in each, as the ONNX file holds them."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(onnx.load(model)).graph
    weights = {t.name: t for t in graph.initializer}
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.value_info}
    shapes |= {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.output}
    macs: dict[str, int] = {}
    for node in graph.node:
        if node.op_type != "Conv" or node.input[1] not in weights:
            continue
        weight = weights[node.input[1]]
        kind = {1: "float32", 10: "float16", 16: "bfloat16"}.get(weight.data_type, str(weight.data_type))
        count = 1
        for size in [*weight.dims[1:], *shapes.get(node.output[0], [])]:
            count *= size
        macs[kind] = macs.get(kind, 0) + count
    total = sum(macs.values())
    return {"conv_macs": macs, "conv_share": {kind: count / total for kind, count in macs.items()} if total else {}}


def openvino_facts(artifact: Path) -> dict[str, Any]:
    """Types of convolution weights in an OpenVINO model."""
    from detkit.deploy.targets.openvino import openvino, weight_types

    names = {"f32": "float32", "f16": "float16"}
    kinds = {names.get(k, k) for k in weight_types(openvino().Core().read_model(str(artifact)))}
    return {"conv_weight_types": sorted(kinds)}


def engine_facts(engine: Path, model: Path) -> dict[str, Any]:
    """How many convolution weights of the graph lie in the engine file, byte for byte, in each type.

    An engine cannot be opened without its GPU, but its weights can be found: TensorRT for RTX stores most as K R S C.
    A layout that this does not know leaves the counts at zero, which proves nothing; a count in the wrong type does.
    """
    import onnx

    content = engine.read_bytes()
    graph = onnx.load(model).graph
    tensors = {t.name: t for t in graph.initializer}
    weights = [onnx.numpy_helper.to_array(tensors[n.input[1]]) for n in graph.node if n.op_type == "Conv" and n.input[1] in tensors]
    weights = [w for w in weights if w.ndim == 4 and w.size >= FEWEST_VALUES and np.unique(w).size > FEWEST_VALUES // 2]
    weights = sorted(weights, key=lambda w: -w.size)[:MOST_WEIGHTS]
    found = {"float32": 0, "float16": 0}
    for weight in weights:
        for kind in found:
            typed = weight.astype(kind)
            layouts = (typed, typed.transpose(0, 2, 3, 1))
            found[kind] += any(np.ascontiguousarray(layout).tobytes() in content for layout in layouts)
    return {"weights_found": found, "weights_looked_for": len(weights)}


def proved(folder: Path, built: dict[str, Any], contract: Contract, *, target: str, precision: str) -> dict[str, Any]:
    """Facts read back from the artifact. Raises GateError for the first that is not what was asked for."""
    facts: dict[str, Any] = {"graph": graph_facts(folder / "model.onnx")}
    found = set(facts["graph"]["conv_share"])
    refuse(found != WANTED[precision], f"convolutions of the graph in {precision}", found)
    if target == "openvino":
        facts["read_back"] = openvino_facts(folder / built["artifact"])
        found = set(facts["read_back"]["conv_weight_types"])
        refuse(found != WANTED[precision], f"convolutions of the OpenVINO model in {precision}", found)
    if target in ("rtx", "tensorrt"):
        found = set(built["execution_precision"].split(" and "))
        refuse(found != WANTED[precision], f"convolutions of the parsed network in {precision}", found)
        facts["read_back"] = engine_facts(folder / built["artifact"], folder / "model.onnx")
        found = {kind for kind, count in facts["read_back"]["weights_found"].items() if count}
        refuse(bool(found - WANTED[precision]), f"weights inside the engine in {precision}", found)
    expected_io = {
        contract.input_name: [contract.input_dtype, list(contract.input_shape)],
        contract.output_name: ["float32", list(contract.output_shape)],
    }
    for name, wanted in expected_io.items():
        refuse(built["io"].get(name) != wanted, f"{name} as {wanted}", built["io"].get(name, "nothing of that name"))
    size_bytes = artifact_bytes(folder, built["artifact"])
    refuse(size_bytes == 0, "an artifact", "an empty file")
    return facts | {"io": built["io"], "size_bytes": size_bytes}


def artifact_bytes(folder: Path, name: str) -> int:
    """Size of an artifact, its weights file included."""
    path = folder / name
    return sum(p.stat().st_size for p in (path, path.with_suffix(".bin")) if p.is_file())


def refuse(mismatch: bool, asked: str, found: Any) -> None:
    if mismatch:
        shown = " and ".join(sorted(found)) if isinstance(found, set) else found
        raise GateError(f"asked for {asked}, found {shown or 'none'}; nothing was kept", hint="detkit compile --force")
