"""Build the artifact of a variant from its model.onnx, read it back, and hold it to its accuracy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from detkit.core.console import say
from detkit.core.errors import GateError
from detkit.core.files import write_json_atomically
from detkit.data.dataset import Dataset
from detkit.deploy.contract import Contract, read_contract
from detkit.deploy.evaluate import evaluate_runner
from detkit.deploy.proof import proved
from detkit.deploy.runners import open_runner, runnable_here
from detkit.deploy.targets import onnxruntime, openvino, tensorrt
from detkit.deploy.targets.openvino import OpenVinoRunner

BUILDERS: dict[str, Callable[[Path, Path, Any], dict[str, Any]]] = {
    "onnxruntime": onnxruntime.build,
    "openvino": openvino.build,
    "rtx": tensorrt.build,
    "tensorrt": tensorrt.build,
}


def build_variant(
    folder: Path, settings: Any, *, reference: Path, dataset: Callable[[], Dataset], ap_exported: float | None = None
) -> dict[str, Any]:
    """Build and prove the artifact in `folder`, which holds model.onnx and contract.json.

    `settings` are CompileSettings with a concrete target; `reference` is the folder of the exported graph, whose AP is
    `ap_exported` where it was measured before. Raises GateError where the artifact is not what was asked for, or loses
    more AP than `compile.max_ap_drop`.
    """
    target = settings.target
    contract = read_contract(folder)
    built = BUILDERS[target](folder / "model.onnx", folder, settings)
    if runnable_here(target):
        runner = open_runner(folder, target, contract)
        built["io"] = runner.io()
        if isinstance(runner, OpenVinoRunner):
            built["execution_precision"] = runner.execution_precision
            layers = runner.layers()
        else:
            layers = graph_layers(folder / "model.onnx")
        write_json_atomically(folder / "layers.json", layers)
    facts = proved(folder, built, contract, target=target, precision=settings.precision)
    if not (folder / "build.log").is_file():
        (folder / "build.log").write_text(f"{target}: {built['artifact']}, {facts['size_bytes']} bytes\n")
    accuracy = accuracy_gate(folder, settings, contract=contract, reference=reference, dataset=dataset, ap_exported=ap_exported)
    built.pop("io")
    return {**built, **facts, "accuracy": accuracy}


def accuracy_gate(
    folder: Path,
    settings: Any,
    *,
    contract: Contract,
    reference: Path,
    dataset: Callable[[], Dataset],
    ap_exported: float | None,
) -> dict[str, Any]:
    """AP of the artifact and, where not given, of the exported graph on the validation pictures.

    Where the artifact cannot run here its graph runs in ONNX Runtime instead, which is said in `measured_on`.
    """
    target = settings.target if runnable_here(settings.target) else "onnxruntime"
    measured_on = "the artifact" if target == settings.target else "its ONNX graph in ONNX Runtime; the engine cannot run here"
    if target != settings.target:
        say(f"compile: accuracy is measured on {measured_on}")
    pictures = dataset()
    runner = open_runner(folder, target, contract)
    actual = evaluate_runner(runner, contract, pictures)["ap"]
    expected = ap_exported
    if expected is None:
        exported = read_contract(reference)
        expected = evaluate_runner(open_runner(reference, "onnxruntime", exported), exported, pictures)["ap"]
    if not expected - actual <= settings.max_ap_drop:
        raise GateError(
            f"AP falls from {expected:.4f} (exported graph) to {actual:.4f} ({settings.target} {settings.precision}), "
            f"more than compile.max_ap_drop {settings.max_ap_drop:g}",
            hint="--fp32, or --set compile.max_ap_drop=... if that loss is acceptable",
        )
    return {"ap": actual, "ap_exported": expected, "max_ap_drop": settings.max_ap_drop, "measured_on": measured_on}


def graph_layers(model: Path) -> list[dict[str, str]]:
    """Nodes of an ONNX graph: name, which starts with the module's, and operator."""
    import onnx

    return [{"name": node.name, "type": node.op_type} for node in onnx.load(model).graph.node]
