"""Detections of one picture as a frozen struct of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detkit.data.geometry import Geometry


@dataclass(frozen=True)
class Detections:
    """N detections: `boxes_xyxy` (N, 4) px of the original picture, `scores` (N,) in [0, 1], `labels` (N,) class indices.

    Raises ValueError with the expected and the actual shape.
    """

    boxes_xyxy: np.ndarray
    scores: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.scores)
        for name, expected in (("boxes_xyxy", (count, 4)), ("scores", (count,)), ("labels", (count,))):
            actual = getattr(self, name).shape
            if actual != expected:
                raise ValueError(f"{name} must have shape {expected}, got {actual}")

    def __len__(self) -> int:
        return len(self.scores)

    def above(self, threshold: float) -> "Detections":
        """Detections whose score is at least `threshold`."""
        keep = self.scores >= threshold
        return Detections(self.boxes_xyxy[keep], self.scores[keep], self.labels[keep])

    def coco_results(self, image_id: int, category_ids: Sequence[int]) -> list[dict[str, Any]]:
        """Rows of COCO's results format: `bbox` is x, y, width, height in px."""
        rows = []
        for (x1, y1, x2, y2), score, label in zip(self.boxes_xyxy.tolist(), self.scores.tolist(), self.labels.tolist(), strict=True):
            rows.append(
                {
                    "image_id": image_id,
                    "category_id": int(category_ids[label]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "score": score,
                }
            )
        return rows


def detections_from_table(table_K6: np.ndarray, geometry: Geometry, original_hw: tuple[int, int]) -> Detections:
    """Detections in the original picture from rows x1 y1 x2 y2 score label in px of the network input.

    `geometry` is the Geometry that made the input of a picture of height and width `original_hw`.
    """
    boxes = geometry.boxes_original_from_input(table_K6[:, :4], original_hw)
    return Detections(boxes, table_K6[:, 4].astype(np.float32), table_K6[:, 5].astype(np.int64))
