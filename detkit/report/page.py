"""report.html: one self-contained page made from a run's manifests; nothing reads it back."""

from html import escape
from pathlib import Path
from typing import Any

from detkit.core.errors import UserError
from detkit.core.files import read_json, write_bytes_atomically
from detkit.core.manifest import Manifest
from detkit.core.run import Run
from detkit.report.charts import line_chart, stacked_bar
from detkit.report.collect import Facts, collected
from detkit.report.pictures import COLOURS, picture_pairs
from detkit.report.style import STYLE

NUM_PICTURES = 6
THRESHOLD = 0.3
# Lines in the chart of precision, and classes of a matrix that is shown whole.
MOST_CURVES = 3
MOST_CLASSES = 15
STAGE_NAMES = {
    "train": "EMA model (torch)",
    "fuse": "fused model (torch)",
    "onnx-unsimplified": "ONNX",
    "onnx": "simplified ONNX",
}


def write_report(run: Run) -> Path:
    """Write report.html into the run and return its path. Raises UserError where nothing has been trained."""
    facts = collected(run)
    if "train" not in facts.stages:
        raise UserError(f"{run.path} holds no finished training to report on", hint="detkit status")
    sections = [
        header(facts),
        section("Lineage", lineage(facts)),
        section("Accuracy at every stage", accuracy(facts)),
        section("Where it errs", errors(facts)),
        section("Speed", speed(facts)),
        section("Training", curves(facts)),
        section("Pictures", pictures(facts)),
        section("How this was measured", method(facts)),
    ]
    title = escape(f"detkit: {facts.recipe.name}")
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )
    target = run.path / "report.html"
    write_bytes_atomically(target, page.encode())
    return target


def section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def missing(what: str, command: str) -> str:
    return f'<p class="missing">{escape(what)}: not measured. <code>{escape(command)}</code></p>'


def table(head: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML already; the first column is text, the others numbers."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def header(facts: Facts) -> str:
    """Name and headline numbers."""
    train = facts.stages["train"].results
    numbers = [("AP", f"{train['ap']:.3f}"), ("AP50", f"{train['ap50']:.3f}")]
    fused = facts.stages.get("fuse")
    if fused is not None:
        numbers.append(("parameters", f"{fused.results['parameters'] / 1e6:.2f} M"))
        numbers.append(("multiply-accumulates", f"{fused.results['macs'] / 1e6:.0f} M"))
    for name, latency in facts.latency.items():
        numbers.append((f"p50, {name.split('/')[-1]}", f"{latency['engine']['latency_ms_p50']:.2f} ms"))
    cards = "".join(f"<div><b>{value}</b><span>{escape(label)}</span></div>" for label, value in numbers)
    said = f"run {facts.run.id}, made {facts.run.created_at}"
    return f'<header><h1>{escape(facts.recipe.name)}</h1><p>{escape(said)}</p><div class="cards">{cards}</div></header>'


def lineage(facts: Facts) -> str:
    """One row per stage: what went in, what came out, with which tools, and how the hop was proved."""
    rows = []
    for name, manifest in facts.stages.items():
        if manifest.stage == "eval":
            continue
        rows.append(
            [
                escape(name),
                escape(proof(manifest)),
                f"{manifest.duration_s:.1f}",
                short_hashes({k: v for k, v in manifest.outputs.items() if k.startswith("model")}),
                short_hashes(manifest.inputs),
                escape(", ".join(f"{k} {v}" for k, v in manifest.tools.items())),
            ]
        )
    return table(["stage", "proof", "seconds", "made", "inputs", "tools"], rows)


def short_hashes(hashes: dict[str, str]) -> str:
    return "<br>".join(f"{escape(name)} <code>{digest[:8]}</code>" for name, digest in hashes.items())


def proof(manifest: Manifest) -> str:
    """What the stage's gate measured, in a sentence."""
    results = manifest.results
    if manifest.stage == "fuse":
        found, allowed = results["max_relative_difference"], results["tolerance"]
        return "; ".join(f"{k}: {max(found[k].values()):.1e} of {allowed[k]:.0e} allowed" for k in found)
    if manifest.stage == "export":
        hops = results["differences"].items()
        worst = "; ".join(f"{hop}: {max(d['boxes'], d['scores']):.1e}" for hop, d in hops)
        return f"{worst} of {results['tolerance']:.0e} allowed"
    if manifest.stage == "compile":
        share = ", ".join(f"{v:.0%} {k}" for k, v in results["graph"]["conv_share"].items())
        accuracy = results["accuracy"]
        drop = accuracy["ap_exported"] - accuracy["ap"]
        return (
            f"convolutions {share}; executes as {results['execution_precision']}; AP drop {drop:+.4f} "
            f"of {accuracy['max_ap_drop']:g} allowed, measured on {accuracy['measured_on']}"
        )
    if manifest.stage == "train":
        counts = [
            f"{count} x {kind} in {part}" for part, kinds in results.get("findings", {}).items() for kind, count in kinds.items()
        ]
        return "; ".join(counts) or "no fault found in labels and pictures"
    return "; ".join(results.get("caveats", [])) or "no caveat"


def accuracy(facts: Facts) -> str:
    """AP of every artifact beside the EMA model's, then AP by class."""
    if not facts.scores:
        return missing("accuracy of the artifacts", "detkit eval")
    first = next(iter(facts.scores.values()))["ap"]
    rows = [
        [
            escape(STAGE_NAMES.get(name, name)),
            f"{row['ap']:.4f}",
            f"{row['ap'] - first:+.4f}",
            f"{row['ap50']:.4f}",
            f"{row['ap75']:.4f}",
            f"{row['ar_100']:.4f}",
        ]
        for name, row in facts.scores.items()
    ]
    last = next(reversed(facts.scores.values()))
    pairs = [(name, ap, last["per_class_ar"][name]) for name, ap in last["per_class"].items()]
    shown = [[escape(name), *(f"{v:.4f}" if v >= 0 else "no object" for v in values)] for name, *values in pairs]
    by_class = table(["class", "AP", "AR"], shown)
    return table(["artifact", "AP", "difference", "AP50", "AP75", "AR"], rows) + by_class


def errors(facts: Facts) -> str:
    """Precision-recall curves and the confusion matrix of the last artifact that was scored."""
    if not facts.details:
        return missing("precision, recall and confusion", "detkit eval")
    name, details = next(reversed(facts.details.items()))
    curves, confusion = details["precision_recall"], details["confusion"]
    title = "precision at IoU 0.5"
    lowest = sorted(curves["precision"].items(), key=lambda item: sum(item[1]))
    if len(lowest) > MOST_CURVES:
        mean = [sum(values) / len(lowest) for values in zip(*curves["precision"].values(), strict=True)]
        title += ", with the lowest classes"
        lowest = [("mean of classes", mean), *lowest[: MOST_CURVES - 1]]
    series = {label: list(zip(curves["recall"], values, strict=True)) for label, values in lowest}
    chart = line_chart(title, series, x_name="recall")
    said = (
        f"Of {STAGE_NAMES.get(name, name)}. Rows are what was labelled, columns what was found with scores of at least "
        f"{confusion['score']:g} and an IoU of at least 0.5."
    )
    matrix = confusion_table(confusion["classes"], confusion["counts"])
    return f'<p>{escape(said)}</p><div class="charts">{chart}<div>{matrix}</div></div>'


def confusion_table(classes: list[str], counts: list[list[Any]]) -> str:
    """The whole matrix of a few classes, the most frequent confusions of many."""
    names = [*classes, "background"]
    if len(classes) <= MOST_CLASSES:
        # Nothing is both unlabelled and not found.
        counts = [*counts[:-1], [*counts[-1][:-1], "-"]]
        rows = [
            [escape(name), *(f"<b>{n}</b>" if i == j else str(n) for j, n in enumerate(row))]
            for i, (name, row) in enumerate(zip(names, counts, strict=True))
        ]
        return table(["labelled \\ found", *names], rows)
    cells = [(n, names[i], names[j]) for i, row in enumerate(counts) for j, n in enumerate(row) if i != j and n]
    frequent = sorted(cells, key=lambda cell: -cell[0])[:MOST_CLASSES]
    return table(["labelled", "found", "times"], [[escape(a), escape(b), str(n)] for n, a, b in frequent])


def speed(facts: Facts) -> str:
    """Latency percentiles, throughput and the split from file to boxes of each measured variant."""
    if not facts.latency:
        return missing("latency", "detkit bench")
    rows, bars = [], []
    for name, latency in facts.latency.items():
        for label in ("engine", "file_to_boxes"):
            row = latency[label]
            cells = [f"{row[f'latency_ms_{p}']:.2f}" for p in ("p50", "p90", "p99")]
            rows.append([escape(f"{name}, {label.replace('_', ' ')}"), *cells, f"{row['images_per_s']:.1f}", f"{row['num_samples']}"])
        caveats = "".join(f'<p class="missing">{escape(c)}</p>' for c in latency["caveats"])
        bars.append(f"<h3>{escape(name)}: file to boxes, p50 of each step</h3>{caveats}{stacked_bar(latency['split_ms'])}")
        energy = latency["energy"]
        said = f"{energy['energy_j_per_image']:.3f} J per image" if energy["measured"] else f"not measured: {energy['reason']}"
        bars.append(f"<p>Energy {escape(said)}. Peak memory {latency['peak_memory_mb']:.0f} MiB.</p>")
    return table(["variant", "p50 ms", "p90 ms", "p99 ms", "images/s", "samples"], rows) + "".join(bars)


def curves(facts: Facts) -> str:
    """Loss, accuracy and learning rate over epochs."""

    def points(name: str) -> list[tuple[float, float]]:
        return [(row["epoch"], row[name]) for row in facts.metrics if name in row]

    charts = [
        line_chart("loss", {n: points(f"loss_{n}") for n in ("dense_score", "score", "box")}),
        line_chart("accuracy on the validation pictures", {n: points(n) for n in ("ap", "ap50", "ap75")}),
        line_chart("learning rate", {"lr": points("lr")}),
    ]
    return f'<div class="charts">{"".join(charts)}</div>'


def pictures(facts: Facts) -> str:
    """Ground truth and detections side by side, from the last artifact that was scored."""
    scored = [name for name in facts.scores if (facts.run.folder(f"eval/{name}") / "detections.json").is_file()]
    if not scored:
        return missing("detections", "detkit eval")
    from detkit.data.dataset import load_dataset

    try:
        dataset = load_dataset(facts.recipe.data, "val")
    except UserError as error:
        return f'<p class="missing">the pictures cannot be read here: {escape(error.what)}</p>'
    results = read_json(facts.run.folder(f"eval/{scored[-1]}") / "detections.json")
    pairs = picture_pairs(dataset, results, count=NUM_PICTURES, threshold=THRESHOLD)
    legend = "".join(
        f'<span class="key"><i style="background:rgb{COLOURS[i % len(COLOURS)]}"></i>{escape(name)}</span>'
        for i, name in enumerate(dataset.classes)
    )
    cells = "".join(
        f'<figure class="pair"><img alt="ground truth of {escape(name)}" src="{truth}">'
        f'<img alt="detections in {escape(name)}" src="{found}"><figcaption>{escape(name)}</figcaption></figure>'
        for name, truth, found in pairs
    )
    said = f"Left ground truth, right detections of {scored[-1]} with scores of at least {THRESHOLD:g}."
    return f'<p>{escape(said)}</p><p class="legend">{legend}</p><div class="pairs">{cells}</div>'


def method(facts: Facts) -> str:
    """Where each kind of number comes from."""
    train: dict[str, Any] = facts.stages["train"].results
    lines = [
        f"AP is pycocotools' COCOeval on {train['num_val_images']} pictures; every artifact gets the same letterboxed input.",
        "Differences of raw outputs are the largest absolute difference over the largest absolute value, on the probe pictures.",
        "Latency is of one call after a warm-up that ends once block medians settle; calls follow each other at once.",
        "Percentiles are by nearest rank.",
        f"Training took {train['wall_s']:.0f} s on {train['device']} with {train['num_processes']} process(es).",
    ]
    machines = {str(v["machine"]["processor"]): v["machine"] for v in facts.latency.values()}
    lines += [f"Measured on {name}, {card['num_cpus']} CPUs, {card['system']}." for name, card in machines.items()]
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
