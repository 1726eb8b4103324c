"""Detections hold arrays of matching shapes and turn into COCO rows in px of the original picture."""

import numpy as np
import pytest

from detkit.data.detections import Detections, detections_from_table
from detkit.data.geometry import Geometry


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"boxes_xyxy must have shape \(2, 4\), got \(1, 4\)"):
        Detections(np.zeros((1, 4)), np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="labels"):
        Detections(np.zeros((2, 4)), np.zeros(2), np.zeros(3))


def test_coco_rows_have_original_category_ids_and_widths() -> None:
    found = Detections(np.array([[1, 2, 11, 22]], np.float32), np.array([0.5]), np.array([1]))
    row = {"image_id": 7, "category_id": 90, "bbox": [1, 2, 10, 20], "score": 0.5}
    assert found.coco_results(7, (3, 90)) == [row]


def test_threshold_keeps_scores_at_least_as_high() -> None:
    found = Detections(np.zeros((3, 4)), np.array([0.9, 0.5, 0.1]), np.arange(3))
    assert found.above(0.5).labels.tolist() == [0, 1] and len(found.above(1.0)) == 0


def test_rows_of_the_network_return_to_the_original_picture() -> None:
    geometry = Geometry(64)
    table = np.array([[16, 24, 48, 40, 0.75, 2]], np.float32)
    found = detections_from_table(table, geometry, (60, 120))
    np.testing.assert_allclose(found.boxes_xyxy, [[30, 15, 90, 45]])
    assert found.scores.tolist() == [0.75] and found.labels.tolist() == [2] and found.labels.dtype == np.int64
