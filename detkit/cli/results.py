"""What commands print of their results for people."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detkit.core.manifest import Manifest
    from detkit.recipe.load import Sourced


def train_lines(path: Path, manifest: "Manifest", changed: bool) -> list[str]:
    results = manifest.results
    state = "trained" if changed else "up to date"
    return [
        f"{state}: AP {results['ap']:.4f}, AP50 {results['ap50']:.4f} on {results['num_val_images']} pictures, "
        f"{results['parameters'] / 1e6:.2f} M parameters, {results['wall_s']:.0f} s",
        f"next: detkit fuse {path}",
    ]


def fuse_lines(manifest: "Manifest", changed: bool) -> list[str]:
    results = manifest.results
    worst = {kind: max(values.values()) for kind, values in results["max_relative_difference"].items()}
    return [
        f"{'fused' if changed else 'up to date'}: {results['parameters_before'] / 1e6:.2f} -> "
        f"{results['parameters'] / 1e6:.2f} M parameters, {results['macs_before'] / 1e6:.0f} -> "
        f"{results['macs'] / 1e6:.0f} M multiply-accumulates",
        f"same network: largest relative difference {worst['float64']:.1e} in float64, {worst['float32']:.1e} in float32",
    ]


def export_lines(manifest: "Manifest", changed: bool) -> list[str]:
    results = manifest.results
    worst = max(max(d["boxes"], d["scores"]) for d in results["differences"].values())
    return [
        f"{'exported' if changed else 'up to date'}: {results['num_nodes_unsimplified']} -> {results['num_nodes']} nodes, "
        f"{results['size_bytes'] / 1e6:.2f} MB, opset {results['opset']} ({results['simplifier']})",
        f"same network: largest relative difference {worst:.1e} in ONNX Runtime",
    ]


def compile_lines(path: Path, variant: str, manifest: "Manifest", changed: bool) -> list[str]:
    results = manifest.results
    accuracy = results["accuracy"]
    shares = ", ".join(f"{share:.0%} {kind}" for kind, share in results["graph"]["conv_share"].items())
    return [
        f"{'compiled' if changed else 'up to date'}: {path / 'compile' / variant / results['artifact']}, "
        f"{results['size_bytes'] / 1e6:.2f} MB",
        f"proved: convolutions {shares}; executes as {results['execution_precision']}; inputs and outputs as in the contract",
        f"AP {accuracy['ap']:.4f} (exported graph {accuracy['ap_exported']:.4f}), measured on {accuracy['measured_on']}",
    ]


def bench_lines(variant: str, manifest: "Manifest", changed: bool) -> list[str]:
    results = manifest.results
    lines = [f"caveat: {caveat}" for caveat in results["caveats"]]
    for name in ("engine", "file_to_boxes"):
        row = results[name]
        lines.append(
            f"{variant} {name.replace('_', ' '):14}  p50 {row['latency_ms_p50']:.2f} ms  p90 {row['latency_ms_p90']:.2f} ms  "
            f"p99 {row['latency_ms_p99']:.2f} ms  {row['images_per_s']:.1f} images/s"
        )
    split = "  ".join(f"{step} {ms:.2f}" for step, ms in results["split_ms"].items())
    energy = results["energy"]
    joules = f"{energy['energy_j_per_image']:.3f} J per image" if energy["measured"] else f"energy: {energy['reason']}"
    accuracy = results["accuracy"]
    return [
        *lines,
        f"split, ms (p50): {split}",
        f"AP {accuracy['ap']:.4f} on {accuracy['num_images']} pictures, from the same artifact; "
        f"peak memory {results['peak_memory_mb']:.0f} MiB; {joules}",
        *([] if changed else ["up to date: measured before; --force measures again"]),
    ]


def eval_lines(scores: dict[str, dict[str, Any]]) -> list[str]:
    first = next(iter(scores.values()))["ap"]
    width = max(len(name) for name in scores)
    return [
        f"{name:{width}}  AP {row['ap']:.4f} ({row['ap'] - first:+.4f})  AP50 {row['ap50']:.4f}  AP75 {row['ap75']:.4f}"
        for name, row in scores.items()
    ]


def score_lines(values: dict[str, Any]) -> list[str]:
    """Scores of predictions, then those of each class."""
    if values["kind"] == "semantic":
        absent = f"; left out, for they are nowhere: {', '.join(values['absent'])}" if values["absent"] else ""
        per_class = values["per_class_iou"], values["per_class_dice"]
        head = (
            f"mIoU {values['miou']:.4f}, mean Dice {values['dice']:.4f}, pixel accuracy {values['pixel_accuracy']:.4f} "
            f"over {values['num_images']} pictures{absent}"
        )
        titles = ("IoU", "Dice")
    else:
        per_class, titles = (values["per_class"], values["per_class_ar"]), ("AP", "AR")
        names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_100")
        head = f"{values['kind']}: " + ", ".join(f"{name.upper()} {values[name]:.4f}" for name in names)
    width = max((len(name) for name in per_class[0]), default=0)
    rows = [
        f"  {name:{width}}  " + "  ".join(f"{title} {one[name]:.4f}" for title, one in zip(titles, per_class, strict=True))
        for name in per_class[0]
    ]
    return [head, *rows]


def status_lines(rows: list[dict[str, Any]]) -> list[str]:
    width = max(len(row["folder"]) for row in rows)
    return [f"{row['folder']:{width}}  {row['state']}{': ' * bool(row['why'])}{'; '.join(row['why'])}" for row in rows]


def show_lines(sourced: "Sourced") -> list[str]:
    from detkit.recipe.load import dotted_names

    content = sourced.recipe.model_dump(mode="json")
    lines = []
    for name in dotted_names(content):
        value: Any = content
        for part in name.split("."):
            value = value[part]
        lines.append(f"{name} = {value!r}  ({sourced.origin(name)})")
    return lines
