"""COCO box scores by pycocotools' COCOeval."""

import contextlib
import io
from typing import Any

import numpy as np

NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_1", "ar_10", "ar_100")


def evaluate_boxes(ground_truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of `results` (COCO results rows) against `ground_truth` (COCO annotation dict), all in 0 to 1.

    Keys are NAMES and `per_class`, a dict of AP by class name. -1 means that nothing was there to score, as in COCOeval.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = ground_truth
        truth.createIndex()
        found = truth.loadRes(results) if results else empty_results(truth)
        evaluation = COCOeval(truth, found, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    scores: dict[str, Any] = {name: float(v) for name, v in zip(NAMES, evaluation.stats, strict=False)}
    names = {c["id"]: c["name"] for c in ground_truth["categories"]}
    # IoU thresholds, recall points, classes, all sizes, 100 detections.
    precision = evaluation.eval["precision"][:, :, :, 0, 2]
    scores["per_class"] = {
        names[category]: class_ap(precision[:, :, index]) for index, category in enumerate(evaluation.params.catIds)
    }
    return scores


def class_ap(precision: np.ndarray) -> float:
    """Mean precision over IoU thresholds and recall points; -1 where the class has no object."""
    valid = precision[precision > -1]
    return float(valid.mean()) if valid.size else -1.0


def empty_results(truth: Any) -> Any:
    """A COCO index without detections, which loadRes refuses to make."""
    from pycocotools.coco import COCO

    found = COCO()
    found.dataset = {"images": truth.dataset["images"], "categories": truth.dataset["categories"], "annotations": []}
    found.createIndex()
    return found
