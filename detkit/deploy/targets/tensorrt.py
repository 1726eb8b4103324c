"""TensorRT and TensorRT for RTX: one path, strongly typed, in a process of its own without torch.

As a program: `python -m detkit.deploy.targets.tensorrt TARGET MODEL.onnx FOLDER SETTINGS.json` writes model.engine,
layers.json and built.json into FOLDER and its log to stderr.
"""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from detkit.core.errors import UserError
from detkit.core.files import read_json, write_json_atomically

ARTIFACT = "model.engine"
MODULES = {"rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}
INSTALL = {"rtx": "pip install detkit[rtx]", "tensorrt": "JetPack brings it; elsewhere: pip install tensorrt"}
NO_GPU = "TensorRT builds on the GPU it builds for, and found no usable one"
# Strongly typed networks, the only ones that keep the graph's own precision, begin here.
OLDEST = 10
ELSEWHERE = "compile on the GPU or board itself; --target rtx builds without one, --target openvino runs on a CPU"


def library(target: str) -> ModuleType:
    """The Python bindings of a target, or UserError saying how to get them."""
    try:
        return importlib.import_module(MODULES[target])
    except ImportError as error:
        raise UserError(f"{MODULES[target]} is not installed: {error}", hint=INSTALL[target]) from error


def build(model: Path, folder: Path, settings: Any) -> dict[str, Any]:
    """Build `model.engine` in a child process and return what it read back from the parsed network and the engine."""
    if importlib.util.find_spec(MODULES[settings.target]) is None:
        raise UserError(f"{MODULES[settings.target]} is not installed", hint=INSTALL[settings.target])
    chosen = {k: getattr(settings, k) for k in ("optimization_level", "workspace_mb", "compute_capability", "precision")}
    request = folder / ".settings.json"
    write_json_atomically(request, chosen)
    command = [sys.executable, "-m", "detkit.deploy.targets.tensorrt", settings.target]
    with (folder / "build.log").open("w") as log:
        status = subprocess.run([*command, str(model), str(folder), str(request)], stdout=log, stderr=log, check=False).returncode
    request.unlink()
    if status:
        raise failure(settings.target, status, (folder / "build.log").read_text().splitlines())
    built = folder / ".built.json"
    facts = read_json(built)
    built.unlink()
    return {"artifact": ARTIFACT, **facts}


def failure(target: str, status: int, log: list[str]) -> UserError:
    """What the child said it died of, or the last that the library logged."""
    said = {key: line.partition(": ")[2] for key in ("error", "hint") for line in log if line.startswith(f"{key}: ")}
    last = log[-1] if log else "without a word"
    what = said.get("error") or f"the builder ended with status {status}: {last}"
    return UserError(f"{target}: {what}", hint=said.get("hint") or "detkit doctor env")


def built_engine(target: str, model: Path, settings: dict[str, Any]) -> tuple[bytes, dict[str, Any], list[dict[str, Any]]]:
    """The serialised engine, facts and layers. Raises UserError for a missing GPU and for nodes that do not parse."""
    trt = library(target)
    if target == "tensorrt" and int(trt.__version__.split(".")[0]) < OLDEST:
        raise UserError(
            f"TensorRT {trt.__version__} cannot take the precision from the graph; that began with {OLDEST}.0",
            hint="a JetPack with TensorRT 10 (6.1 or newer)",
        )
    logger = trt.Logger(trt.Logger.INFO)
    try:
        builder = trt.Builder(logger)
    except TypeError as error:
        raise UserError(NO_GPU, hint=ELSEWHERE) from error
    network = builder.create_network(strongly_typed_flag(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model.read_bytes()):
        raise UserError("; ".join(parser_sentence(parser.get_error(i)) for i in range(parser.num_errors)))
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings["workspace_mb"] << 20)
    config.builder_optimization_level = settings["optimization_level"]
    if hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)
    facts: dict[str, Any] = {"tool": MODULES[target], "tool_version": trt.__version__}
    if target == "rtx":
        facts["compute_capability"] = settings["compute_capability"]
        set_compute_capability(trt, config, settings["compute_capability"])
    layers = network_layers(trt, network)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise UserError("the builder returned no engine; build.log says why")
    engine = bytes(plan)
    return engine, facts | {"io": network_io(network), "execution_precision": conv_types(layers)}, layers


def strongly_typed_flag(trt: ModuleType) -> int:
    """Network flags: always strongly typed (deprecated and implied from 11.0 on)."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def set_compute_capability(trt: ModuleType, config: Any, wanted: str) -> None:
    """Build for the GPU generation `major.minor` without needing the GPU."""
    name = f"SM{wanted.replace('.', '')}"
    capability = getattr(trt.ComputeCapability, name, None)
    if capability is None:
        known = sorted(n for n in dir(trt.ComputeCapability) if n.startswith("SM"))
        raise UserError(f"compile.compute_capability {wanted} is none of {', '.join(known)}")
    config.num_compute_capabilities = 1
    config.set_compute_capability(capability, 0)


def parser_sentence(error: Any) -> str:
    """Node, operator and reason of a parser error."""
    node = error.node_name() if hasattr(error, "node_name") else ""
    operator = error.node_operator() if hasattr(error, "node_operator") else ""
    return f"node {node!r} ({operator}) does not parse: {error.desc()}"


def network_layers(trt: ModuleType, network: Any) -> list[dict[str, Any]]:
    """Layers of the parsed network: name (the ONNX node), type, and the types of first input and output."""
    rows = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        first = layer.get_input(0)
        rows.append(
            {
                "name": layer.name,
                "type": str(layer.type).rpartition(".")[2],
                "input_type": "" if first is None else str(first.dtype).rpartition(".")[2],
                "precision": str(layer.get_output(0).dtype).rpartition(".")[2],
            }
        )
    return rows


def conv_types(layers: list[dict[str, Any]]) -> str:
    """Distinct types that convolutions compute in, joined."""
    kinds: set[str] = {r[k] for r in layers if r["type"] == "CONVOLUTION" for k in ("input_type", "precision")}
    names = {"FLOAT": "float32", "HALF": "float16"}
    return " and ".join(names.get(kind, kind) for kind in sorted(kinds))


def network_io(network: Any) -> dict[str, Any]:
    """Names, types and shapes of inputs and outputs."""
    names = {"FLOAT": "float32", "HALF": "float16", "UINT8": "uint8"}
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    tensors += [network.get_output(i) for i in range(network.num_outputs)]
    kinds = [str(t.dtype).rpartition(".")[2] for t in tensors]
    return {t.name: [names.get(k, k), [int(d) for d in t.shape]] for t, k in zip(tensors, kinds, strict=True)}


def main(target: str, model: Path, folder: Path, settings: Path) -> int:
    try:
        engine, facts, layers = built_engine(target, model, json.loads(settings.read_text()))
    except UserError as error:
        # One line each, whatever the library wrote into them: the parent finds them by their first word.
        for key, text in (("error", error.what), ("hint", error.hint)):
            print(f"{key}: {' '.join(text.split())}", file=sys.stderr)
        return 1
    (folder / ARTIFACT).write_bytes(engine)
    write_json_atomically(folder / "layers.json", layers)
    write_json_atomically(folder / ".built.json", facts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *(Path(a) for a in sys.argv[2:5])))
