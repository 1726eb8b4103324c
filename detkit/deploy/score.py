"""Score predictions that any program made: COCO result rows of boxes or masks, or a folder of semantic masks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detkit.core.errors import UserError
from detkit.data.content import opened
from detkit.data.dataset import Dataset, coco_ground_truth
from detkit.data.folders import pictures_below
from detkit.data.images import UNREADABLE
from detkit.data.png_masks import IGNORED
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
    found = {path.stem: path for path in pictures_below(folder)}
    table = np.full(max(256, *dataset.category_ids) + 1, -1, np.int64)
    table[list(dataset.category_ids)] = np.arange(len(dataset.classes))
    confusion = SemanticConfusion(len(dataset.classes), ignored=-1)
    missing = [image.path.name for image in dataset.images if image.path.stem not in found]
    if missing:
        raise UserError(f"{folder} has no mask for {len(missing)} of {len(dataset.images)} pictures, such as {missing[0]}")
    for image in dataset.images:
        if image.semantic is None:
            raise UserError(f"{image.path} has no semantic label", hint="--set data.format=masks")
        path = found[image.path.stem]
        truth, prediction = class_ids(image.semantic), class_ids(path)
        if truth.shape != prediction.shape:
            shapes = [f"{ids.shape[1]}x{ids.shape[0]} px" for ids in (prediction, truth)]
            raise UserError(f"{path} has {shapes[0]}, its label {shapes[1]}", hint="resize predictions to the labels' size")
        counted = ~np.isin(truth, [IGNORED, *ignored])
        unknown = np.setdiff1d(prediction[counted], dataset.category_ids)
        if len(unknown):
            raise UserError(f"{path} has the id {unknown[0]}, which is no class; they are {list(dataset.category_ids)}")
        confusion.add(np.where(counted, table[truth], -1), np.where(counted, table[np.where(counted, prediction, 0)], -1))
    return {**confusion.scores().as_dict(dataset.classes), "num_images": len(dataset.images)}


def class_ids(path: Path) -> np.ndarray:
    """Ids (H, W) of a mask of one channel, 0 to 255. Raises UserError for anything else."""
    try:
        with opened(path) as file, Image.open(file) as picture:
            ids = np.asarray(picture).astype(np.int64)
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as a picture: {error}") from error
    if ids.ndim != 2 or (ids.size and not 0 <= ids.min() <= ids.max() <= 255):
        raise UserError(f"{path} is no mask of one channel with ids of 0 to 255")
    return ids
