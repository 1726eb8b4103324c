"""COCO scores of an artifact on the validation pictures, through the same geometry that training used."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from detkit.data.dataset import Dataset, coco_ground_truth
from detkit.data.detections import Detections
from detkit.data.images import read_image
from detkit.data.table import LabelledImage
from detkit.deploy.contract import Contract
from detkit.deploy.runners import Runner
from detkit.metrics.coco import evaluate_boxes


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
