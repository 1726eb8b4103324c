"""Confusion matrices: of detections, and of the pixels of semantic masks, with the scores that follow from those."""

from dataclasses import dataclass
from typing import Any

import numpy as np


class DetectionConfusion:
    """Counts (C + 1, C + 1) int64, rows truth and columns detections, the last of both standing for background.

    Detections of at least `score` are matched one to one with objects of any class in order of falling IoU of at least
    `iou`. Crowds are neither objects nor misses, and a detection of which half lies in a crowd is left out if unmatched.
    """

    def __init__(self, num_classes: int, *, score: float = 0.25, iou: float = 0.5) -> None:
        self.counts = np.zeros((num_classes + 1, num_classes + 1), np.int64)
        self._score = score
        self._iou = iou

    def add(
        self,
        truth_boxes: np.ndarray,
        truth_labels: np.ndarray,
        boxes: np.ndarray,
        scores: np.ndarray,
        labels: np.ndarray,
        *,
        crowd: np.ndarray | None = None,
    ) -> None:
        """Count one picture: boxes (N, 4) xyxy px, labels (N,) class indices, `crowd` (N,) bool of the truth."""
        is_crowd = np.zeros(len(truth_boxes), bool) if crowd is None else crowd
        keep = scores >= self._score
        boxes, labels = boxes[keep], labels[keep]
        objects, names = truth_boxes[~is_crowd], truth_labels[~is_crowd]
        overlaps = iou_matrix(objects, boxes)
        background = len(self.counts) - 1
        seen_rows, seen_columns = np.zeros(len(objects), bool), np.zeros(len(boxes), bool)
        for place in np.argsort(-overlaps, axis=None, kind="stable"):
            row, column = divmod(int(place), len(boxes))
            if overlaps[row, column] < self._iou:
                break
            if not seen_rows[row] and not seen_columns[column]:
                seen_rows[row] = seen_columns[column] = True
                self.counts[names[row], labels[column]] += 1
        np.add.at(self.counts[:, background], names[~seen_rows], 1)
        excused = share_inside(boxes, truth_boxes[is_crowd]) >= 0.5
        np.add.at(self.counts[background], labels[~seen_columns & ~excused], 1)

    def merge(self, other: "DetectionConfusion") -> None:
        """Add the counts of another share of the pictures."""
        self.counts += other.counts


def iou_matrix(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """IoU (N, M) of boxes (N, 4) and (M, 4) xyxy."""
    shared = intersections(one, other)
    areas = [np.clip(b[:, 2:] - b[:, :2], 0, None).prod(1) for b in (one, other)]
    union = areas[0][:, None] + areas[1][None] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def share_inside(boxes: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """Largest share (N,) of each box that lies in one of the regions (M, 4)."""
    if not len(regions):
        return np.zeros(len(boxes))
    areas = np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(1)
    return intersections(boxes, regions).max(1) / np.maximum(areas, np.finfo(np.float64).tiny)


def intersections(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Areas (N, M) that boxes share."""
    a, b = np.asarray(one, np.float64).reshape(-1, 1, 4), np.asarray(other, np.float64).reshape(1, -1, 4)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    return np.clip(sides, 0, None).prod(2)


@dataclass(frozen=True)
class SemanticScores:
    """IoU and Dice by class (NaN where absent everywhere), their means over present classes, pixel accuracy, absent classes."""

    iou: np.ndarray
    dice: np.ndarray
    mean_iou: float
    mean_dice: float
    accuracy: float
    absent: tuple[int, ...]

    def as_dict(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """Plain values by class name."""
        present = [i for i in range(len(classes)) if i not in self.absent]
        return {
            "miou": self.mean_iou,
            "dice": self.mean_dice,
            "pixel_accuracy": self.accuracy,
            "per_class_iou": {classes[i]: float(self.iou[i]) for i in present},
            "per_class_dice": {classes[i]: float(self.dice[i]) for i in present},
            "absent": [classes[i] for i in self.absent],
        }


class SemanticConfusion:
    """Pixel counts (C, C) int64, rows truth and columns prediction; shares of several processes merge exactly."""

    def __init__(self, num_classes: int, *, ignored: int = 255) -> None:
        self.counts = np.zeros((num_classes, num_classes), np.int64)
        self._ignored = ignored

    def add(self, truth: np.ndarray, prediction: np.ndarray) -> None:
        """Count one picture of class indices (H, W). Raises ValueError for other shapes and for indices that are no class."""
        if truth.shape != prediction.shape:
            raise ValueError(f"truth and prediction must have the same shape, got {truth.shape} and {prediction.shape}")
        count = len(self.counts)
        valid = truth != self._ignored
        rows, columns = truth[valid].astype(np.int64), prediction[valid].astype(np.int64)
        for name, values in (("truth", rows), ("prediction", columns)):
            if values.size and not 0 <= values.min() <= values.max() < count:
                raise ValueError(f"{name} holds {int(values.max())}, classes end at {count - 1}")
        self.counts += np.bincount(rows * count + columns, minlength=count * count).reshape(count, count)

    def merge(self, other: "SemanticConfusion") -> None:
        """Add the counts of another share of the pictures."""
        self.counts += other.counts

    def scores(self) -> SemanticScores:
        """IoU = TP / (TP + FP + FN), Dice = 2 TP / (2 TP + FP + FN); classes in neither truth nor prediction are left out."""
        hits = np.diag(self.counts).astype(np.float64)
        total = (self.counts.sum(0) + self.counts.sum(1)).astype(np.float64)
        present = total > 0
        nothing = np.full(len(hits), np.nan)
        iou = np.divide(hits, total - hits, out=nothing.copy(), where=present)
        dice = np.divide(2 * hits, total, out=nothing.copy(), where=present)
        pixels = self.counts.sum()
        return SemanticScores(
            iou,
            dice,
            float(iou[present].mean()) if present.any() else float("nan"),
            float(dice[present].mean()) if present.any() else float("nan"),
            float(hits.sum() / pixels) if pixels else float("nan"),
            tuple(np.flatnonzero(~present).tolist()),
        )
