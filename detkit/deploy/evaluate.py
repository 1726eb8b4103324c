"""COCO scores of an artifact on the validation pictures, through the same geometry that training used."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from detkit.data.dataset import Dataset, coco_ground_truth
from detkit.data.detections import Detections
from detkit.data.images import read_image
from detkit.data.table import LabelledImage
from detkit.deploy.contract import Contract
from detkit.deploy.runners import Runner
from detkit.metrics.coco import evaluate_boxes, precision_recall
from detkit.metrics.confusion import DetectionConfusion

# Detections below this score are not counted in the confusion matrix.
CONFUSION_SCORE = 0.25


def evaluate_runner(runner: Runner, contract: Contract, dataset: Dataset) -> dict[str, Any]:
    """Scores (see metrics.coco) with `results`, the COCO results rows they were computed from."""
    began = time.perf_counter()
    results = [
        row
        for image, detections in detected(runner, contract, dataset.images)
        for row in detections.coco_results(image.image_id, dataset.category_ids)
    ]
    scores = evaluate_boxes(coco_ground_truth(dataset), results)
    return scores | {"num_images": len(dataset.images), "wall_s": time.perf_counter() - began, "results": results}


def details(dataset: Dataset, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Precision-recall curves at an IoU of 0.5 and the confusion matrix of results rows, as plain values.

    `counts` (C + 1, C + 1) has rows truth and columns detections of at least `score`; the last of both is background.
    """
    curves = precision_recall(coco_ground_truth(dataset), results, "bbox")
    confusion = DetectionConfusion(len(dataset.classes), score=CONFUSION_SCORE)
    number = {category: label for label, category in enumerate(dataset.category_ids)}
    by_image: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in results:
        by_image[row["image_id"]].append(row)
    for image in dataset.images:
        rows = by_image[image.image_id]
        boxes = np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        scores = np.array([row["score"] for row in rows], np.float64)
        labels = np.array([number[row["category_id"]] for row in rows], np.int64)
        confusion.add(image.boxes_xyxy, image.labels, boxes, scores, labels, crowd=image.crowd)
    counts = confusion.counts.tolist()
    return {"precision_recall": curves, "confusion": {"score": CONFUSION_SCORE, "classes": list(dataset.classes), "counts": counts}}


def detected(runner: Runner, contract: Contract, images: Sequence[LabelledImage]) -> Iterator[tuple[LabelledImage, Detections]]:
    """Each picture with its detections; the last batch is filled up with copies that are dropped again."""
    for start in range(0, len(images), contract.batch):
        chunk = images[start : start + contract.batch]
        pictures = [read_image(image.path, upright=image.upright) for image in chunk]
        inputs = np.stack([contract.geometry.letterbox(picture) for picture in pictures])
        inputs = np.concatenate([inputs, np.repeat(inputs[-1:], contract.batch - len(inputs), axis=0)])
        tables = runner(contract.graph_input(inputs))
        for image, table, picture in zip(chunk, tables, pictures, strict=False):
            yield image, contract.detections(table, (picture.shape[0], picture.shape[1]))
