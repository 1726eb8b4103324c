"""Score predictions that any program made: COCO result rows of boxes or masks, or a folder of semantic masks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.errors import UserError
from detkit.data.dataset import Dataset, coco_ground_truth
from detkit.data.folders import pictures_below
from detkit.data.png_masks import IGNORED, mask_ids
from detkit.deploy.evaluate import details
from detkit.metrics.coco import evaluate_boxes, evaluate_masks
from detkit.metrics.confusion import SemanticConfusion


def scored(predictions: Path, dataset: Dataset, ignored: tuple[int, ...] = ()) -> dict[str, Any]:
    """Scores of a results JSON, or of a folder of PNGs of class ids named as their pictures; `kind` says which.

    Rows with `segmentation` are scored as masks, others as boxes with the confusion matrix and the curves beside. Pixels
    of 255 and of the ids `ignored` in the labels count for nothing. Raises UserError for what cannot be read or does not
    belong to the pictures.
    """
    if predictions.is_dir():
        return {"kind": "semantic", **semantic_scores(predictions, dataset, ignored)}
    rows = result_rows(predictions)
    known = set(dataset.category_ids)
    foreign = sorted({str(row["category_id"]) for row in rows if row["category_id"] not in known})
    if foreign:
        raise UserError(f"{predictions} has the category ids {', '.join(foreign[:8])}; the labels have {sorted(known)}")
    if any("segmentation" in row for row in rows):
        return {"kind": "segm", **evaluate_masks(with_masks(dataset), rows)}
    return {"kind": "bbox", **evaluate_boxes(coco_ground_truth(dataset), rows), **details(dataset, rows)}


def result_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of COCO's results format. Raises UserError naming the first that is not one."""
    if not path.is_file():
        raise UserError(f"there is no {path}", hint="name a JSON of COCO result rows, or a folder of PNG masks")
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise UserError(f"{path} is not a list of COCO result rows", hint="rows of image_id, category_id, bbox or segmentation, score")
    for number, row in enumerate(rows):
        if not is_row(row):
            raise UserError(
                f"{path}: row {number} is {str(row)[:80]}", hint="a row has image_id, category_id, score, and bbox or segmentation"
            )
    return rows


def is_row(row: Any) -> bool:
    """Whether a value is a row with a box of four numbers or a segmentation, and a score."""
    if not isinstance(row, dict) or not {"image_id", "category_id", "score"} <= row.keys():
        return False
    box = row.get("bbox")
    numbers = [row["score"], *(box if isinstance(box, list) and len(box) == 4 else ["" if "segmentation" not in row else 0])]
    whole = all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers)
    return whole and all(isinstance(row[name], int | str) for name in ("image_id", "category_id"))


def with_masks(dataset: Dataset) -> dict[str, Any]:
    """COCO's annotation dict with masks. Raises UserError where an object has none."""
    truth = coco_ground_truth(dataset)
    masks = [(image, mask) for image in dataset.images for mask in (image.masks or [b""] * len(image.labels))]
    for row, (image, mask) in zip(truth["annotations"], masks, strict=True):
        if not mask:
            raise UserError(f"an object of {image.path} has no mask", hint="score boxes: leave segmentation out of the rows")
        row["segmentation"] = json.loads(mask)
    return truth


def semantic_scores(folder: Path, dataset: Dataset, ignored: tuple[int, ...]) -> dict[str, Any]:
    """IoU and Dice by class over all pictures, see metrics.confusion."""
    found = by_stem(pictures_below(folder))
    pictures = by_stem([image.path for image in dataset.images])
    missing = [path.name for stem, path in pictures.items() if stem not in found]
    if missing:
        raise UserError(f"{folder} has no mask for {len(missing)} of {len(pictures)} pictures, such as {missing[0]}")
    confusion = SemanticConfusion(len(dataset.classes), ignored=-1)
    for image in dataset.images:
        if image.semantic is None:
            raise UserError(f"{image.path} has no semantic label", hint="--set data.format=masks")
        path = found[image.path.stem]
        labelled, predicted = mask_ids(image.semantic), mask_ids(path)
        if labelled.shape != predicted.shape:
            shapes = [f"{ids.shape[1]}x{ids.shape[0]} px" for ids in (predicted, labelled)]
            raise UserError(f"{path} has {shapes[0]}, its label {shapes[1]}", hint="resize predictions to the labels' size")
        truth, prediction = (class_indices(ids, dataset.category_ids) for ids in (labelled, predicted))
        truth[np.isin(labelled, [IGNORED, *ignored])] = -1
        unknown = predicted[(prediction < 0) & (truth >= 0)]
        if len(unknown):
            raise UserError(f"{path} has the id {unknown[0]}, which is no class; they are {list(dataset.category_ids)}")
        confusion.add(truth, prediction)
    return {**confusion.scores().as_dict(dataset.classes), "num_images": len(dataset.images)}


def by_stem(paths: list[Path]) -> dict[str, Path]:
    """Paths by name without suffix. Raises UserError where two share one."""
    found: dict[str, Path] = {}
    for path in paths:
        if found.setdefault(path.stem, path) != path:
            raise UserError(f"{found[path.stem]} and {path} have the same name", hint="score the folders one by one")
    return found


def class_indices(ids: np.ndarray, category_ids: Sequence[int]) -> np.ndarray:
    """The index of each id in `category_ids`, -1 where it is not among them."""
    order = np.argsort(category_ids)
    ordered = np.asarray(category_ids)[order]
    place = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1)
    return np.where(ordered[place] == ids, order[place], -1)
