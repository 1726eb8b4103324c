"""Gather what a run's manifests and measurements say."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detkit.core.files import read_json
from detkit.core.manifest import Manifest, read_manifest
from detkit.core.run import Run
from detkit.recipe.load import load_recipe
from detkit.recipe.schema import Recipe


@dataclass(frozen=True)
class Facts:
    """Everything that the page shows, by the folder it lies in below the run."""

    run: Run
    recipe: Recipe
    stages: dict[str, Manifest]
    scores: dict[str, dict[str, Any]]
    latency: dict[str, dict[str, Any]]
    metrics: list[dict[str, Any]]
    card: dict[str, Any]
    details: dict[str, dict[str, Any]]


def collected(run: Run) -> Facts:
    """Facts of a run; what has not been made is absent."""
    names = ["train", "fuse", "export", *folders(run, "compile/*"), *folders(run, "bench/*/*"), *folders(run, "eval/*")]
    stages = {name: m for name in names if (m := read_manifest(run.folder(name))) is not None}
    scores = {n.removeprefix("eval/"): m.results for n, m in stages.items() if m.stage == "eval"}
    latency = {n: read_json(run.folder(n) / "latency.json") for n, m in stages.items() if m.stage == "bench"}
    card = run.folder("train/model.json")
    return Facts(
        run=run,
        recipe=load_recipe(run.recipe_path),
        stages=stages,
        scores=ordered(scores),
        latency=latency,
        metrics=rows(run.folder("train/metrics.jsonl")),
        card=read_json(card) if card.is_file() else {},
        details={name: read_json(path) for name in ordered(scores) if (path := run.folder(f"eval/{name}/details.json")).is_file()},
    )


def folders(run: Run, pattern: str) -> list[str]:
    """Committed folders below the run that match, leaving out those being built."""
    found = [p.parent.relative_to(run.path) for p in run.path.glob(f"{pattern}/manifest.json")]
    return sorted(p.as_posix() for p in found if not any(part.startswith(".") for part in p.parts))


def ordered(scores: dict[str, Any]) -> dict[str, Any]:
    """Artifacts in the order in which they are made."""
    order = ["train", "fuse", "onnx-unsimplified", "onnx"]
    return dict(sorted(scores.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 9, item[0])))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
