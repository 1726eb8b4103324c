"""COCO scores of boxes and masks by pycocotools' COCOeval."""

import contextlib
import io
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from detkit.core.errors import UserError

if TYPE_CHECKING:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large")
Kind = Literal["bbox", "segm"]
# What pycocotools raises on content that it cannot work with.
RAISED = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError)


def evaluate_boxes(ground_truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Scores of box `results` (COCO results rows) against `ground_truth` (COCO annotation dict), all in 0 to 1.

    Keys are NAMES and `per_class`, a dict of AP by class name. -1 means that nothing was there to score, as in COCOeval.
    """
    return evaluate(ground_truth, results, "bbox")


def evaluate_masks(ground_truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """The same of masks: results hold `segmentation`, ground truth polygons or run lengths of either kind."""
    return evaluate(ground_truth, results, "segm")


def evaluate(ground_truth: dict[str, Any], results: list[dict[str, Any]], kind: Kind) -> dict[str, Any]:
    """Scores of one kind. Raises UserError for results of pictures that are not there, and where pycocotools cannot go on."""
    evaluation = evaluated(ground_truth, results, kind)
    scores: dict[str, Any] = {name: float(v) for name, v in zip(NAMES, evaluation.stats, strict=True)}
    names = {c["id"]: c["name"] for c in ground_truth["categories"]}
    # IoU thresholds, recall points, classes, all sizes, 100 detections.
    precision = evaluation.eval["precision"][:, :, :, 0, 2]
    recall = evaluation.eval["recall"][:, :, 0, 2]
    categories = list(enumerate(evaluation.params.catIds))
    scores["per_class"] = {names[category]: mean_of_valid(precision[:, :, index]) for index, category in categories}
    scores["per_class_ar"] = {names[category]: mean_of_valid(recall[:, index]) for index, category in categories}
    return scores


def precision_recall(ground_truth: dict[str, Any], results: list[dict[str, Any]], kind: Kind, *, iou: float = 0.5) -> dict[str, Any]:
    """Precision of each class at COCO's 101 recalls: `recall` (101,), and `precision` and `score` (101,) by class name.

    `score` is the lowest score that reaches the recall. A class without objects is left out. `iou` is one of 0.5, 0.55 ... 0.95.
    """
    evaluation = evaluated(ground_truth, results, kind)
    row = int(np.argmin(np.abs(evaluation.params.iouThrs - iou)))
    if abs(evaluation.params.iouThrs[row] - iou) > 1e-9:
        raise UserError(f"iou {iou} is none of {evaluation.params.iouThrs.round(2).tolist()}")
    names = {c["id"]: c["name"] for c in ground_truth["categories"]}
    curves: dict[str, Any] = {"recall": evaluation.params.recThrs.tolist(), "precision": {}, "score": {}}
    for index, category in enumerate(evaluation.params.catIds):
        precision = evaluation.eval["precision"][row, :, index, 0, 2]
        if precision.max() >= 0:
            curves["precision"][names[category]] = precision.tolist()
            curves["score"][names[category]] = evaluation.eval["scores"][row, :, index, 0, 2].tolist()
    return curves


def evaluated(ground_truth: dict[str, Any], results: list[dict[str, Any]], kind: Kind) -> "COCOeval":
    """pycocotools' evaluation, accumulated and summed up."""
    from pycocotools.cocoeval import COCOeval

    known = {image["id"] for image in ground_truth["images"]}
    unknown = sorted({row["image_id"] for row in results} - known, key=str)
    if unknown:
        raise UserError(
            f"results name {len(unknown)} pictures that the ground truth lacks: {', '.join(map(str, unknown[:8]))}",
            hint="score them against the labels that they were made from",
        )
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            # pycocotools writes into what it is given.
            truth = indexed({**ground_truth, "annotations": [dict(row) for row in ground_truth["annotations"]]})
            rows: Any = [dict(row) for row in results]
            found = truth.loadRes(rows) if rows else indexed({**ground_truth, "annotations": []})
            evaluation = COCOeval(truth, found, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        except RAISED as error:
            raise UserError(f"pycocotools cannot score this: {type(error).__name__}: {error}", hint="detkit doctor data") from error
    return evaluation


def mean_of_valid(values: np.ndarray) -> float:
    """Mean of what is not -1; -1 where the class has no object."""
    valid = values[values > -1]
    return float(valid.mean()) if valid.size else -1.0


def indexed(content: Any) -> "COCO":
    """pycocotools' index of an annotation dict."""
    from pycocotools.coco import COCO

    index = COCO()
    index.dataset = content
    index.createIndex()
    return index
