"""Training curves as PNG, drawn from metrics.jsonl."""

import json
from pathlib import Path
from typing import Any

# Panel title, then the columns of metrics.jsonl that it shows.
PANELS: dict[str, tuple[str, ...]] = {
    "loss": ("loss_dense_score", "loss_score", "loss_box"),
    "accuracy (COCO)": ("ap", "ap50", "ap75"),
    "learning rate": ("lr",),
    "images per second": ("images_per_s",),
}


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl, one per epoch; empty where there is none."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def write_curves(folder: Path) -> Path:
    """Write plots/curves.png and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read_metrics(folder)
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, columns) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for column in columns:
            points = [(row["epoch"], row[column]) for row in rows if column in row]
            if points:
                label = column.removeprefix("loss_").replace("_", " ")
                axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 40 else None)
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.grid(alpha=0.3)
        if len(columns) > 1:
            axes.legend()
    target = folder / "plots" / "curves.png"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=110)
    return target
