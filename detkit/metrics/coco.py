"""COCO box scores by pycocotools' COCOeval."""

import contextlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pycocotools.coco import COCO

NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_1", "ar_10", "ar_100")


def evaluate_boxes(ground_truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of `results` (COCO results rows) against `ground_truth` (COCO annotation dict), all in 0 to 1.

    Keys are NAMES and `per_class`, a dict of AP by class name. -1 means that nothing was there to score, as in COCOeval.
    """
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        # pycocotools writes into what it is given.
        truth = indexed({**ground_truth, "annotations": [dict(row) for row in ground_truth["annotations"]]})
        rows: Any = [dict(row) for row in results]
        found = truth.loadRes(rows) if rows else indexed({**ground_truth, "annotations": []})
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


def indexed(content: Any) -> "COCO":
    """pycocotools' index of an annotation dict."""
    from pycocotools.coco import COCO

    index = COCO()
    index.dataset = content
    index.createIndex()
    return index
