"""COCO scores of boxes and masks by COCOeval's rules.

hotcoco computes them where it is installed and the content is plain (`are_plain`): there it gives the digits of
pycocotools on all fixtures and random cases of the tests (the precision and recall tables too), a hundred times faster.
faster-coco-eval does not: it differs in the last digit on 47 of the 78 stored vectors.
"""

import contextlib
import functools
import io
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from detkit.core.console import say
from detkit.core.errors import UserError
from detkit.core.modules import missing_modules

NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large")
Kind = Literal["bbox", "segm"]
# What the engines raise on content that they cannot work with.
RAISED = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, ZeroDivisionError)


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
    thresholds = np.asarray(evaluation.params.iouThrs)
    row = int(np.argmin(np.abs(thresholds - iou)))
    if abs(thresholds[row] - iou) > 1e-9:
        raise UserError(f"iou {iou} is none of {thresholds.round(2).tolist()}")
    names = {c["id"]: c["name"] for c in ground_truth["categories"]}
    curves: dict[str, Any] = {"recall": np.asarray(evaluation.params.recThrs).tolist(), "precision": {}, "score": {}}
    for index, category in enumerate(evaluation.params.catIds):
        precision = evaluation.eval["precision"][row, :, index, 0, 2]
        if precision.max() >= 0:
            curves["precision"][names[category]] = precision.tolist()
            curves["score"][names[category]] = evaluation.eval["scores"][row, :, index, 0, 2].tolist()
    return curves


def evaluated(ground_truth: dict[str, Any], results: list[dict[str, Any]], kind: Kind, *, engine: str = "") -> Any:
    """A COCOeval, accumulated and summed up, of `engine` (hotcoco or pycocotools; by default the first that is there)."""
    ids = [image["id"] for image in ground_truth["images"]]
    unknown = sorted({row["image_id"] for row in results} - set(ids), key=str)
    if unknown:
        raise UserError(
            f"results name {len(unknown)} pictures that the ground truth lacks: {', '.join(map(str, unknown[:8]))}",
            hint="score them against the labels that they were made from",
        )
    number = {image_id: image_id if isinstance(image_id, int) else place for place, image_id in enumerate(ids, start=1)}
    # Copies, because pycocotools writes into what it is given.
    images = [{**image, "id": number[image["id"]]} for image in ground_truth["images"]]
    objects, found = (
        [{**row, "image_id": number.get(row["image_id"])} for row in rows] for rows in (ground_truth["annotations"], results)
    )
    content = {**ground_truth, "images": images, "annotations": objects}
    build, evaluator = tools(engine or (default_engine() if are_plain(content, found) else "pycocotools"))
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            truth = build(content)
            evaluation = evaluator(truth, load_results(truth, found) if found else build({**content, "annotations": []}), kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        except RAISED as error:
            raise UserError(f"this cannot be scored: {type(error).__name__}: {error}", hint="detkit doctor data") from error
    return evaluation


def are_plain(ground_truth: dict[str, Any], results: list[dict[str, Any]]) -> bool:
    """Whether both engines are known to agree: they do not on annotation ids of 0, repeated category ids and NaN."""
    ids = [row.get("id") for row in ground_truth["annotations"]]
    categories = [row["id"] for row in ground_truth["categories"]]
    values = [row.get("score", 0.0) for row in results]
    values += [value for row in (*ground_truth["annotations"], *results) for value in row.get("bbox") or ()]
    return (
        all(type(i) is int and i > 0 for i in (*ids, *categories))
        and len(set(categories)) == len(categories)
        and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    )


@functools.cache
def default_engine() -> str:
    """hotcoco, or pycocotools with a word where that is missing."""
    if missing_modules(["hotcoco"]):
        say("scores: hotcoco is not installed; pycocotools gives the same digits, more slowly")
        return "pycocotools"
    return "hotcoco"


def tools(engine: str) -> tuple[Callable[[dict[str, Any]], Any], Callable[..., Any]]:
    """What builds an index of an annotation dict, and COCOeval."""
    if engine == "hotcoco":
        import hotcoco

        return hotcoco.COCO, hotcoco.COCOeval
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def indexed(content: Any) -> COCO:
        index = COCO()
        index.dataset = content
        index.createIndex()
        return index

    return indexed, COCOeval


def load_results(truth: Any, rows: list[dict[str, Any]]) -> Any:
    return truth.load_res(rows) if hasattr(truth, "load_res") else truth.loadRes(rows)


def mean_of_valid(values: np.ndarray) -> float:
    """Mean of what is not -1; -1 where the class has no object."""
    valid = values[values > -1]
    return float(valid.mean()) if valid.size else -1.0
