"""Scores are COCOeval's, to the digit, and scoring leaves its inputs alone and stdout empty."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from detkit.metrics.coco import NAMES, evaluate_boxes

OFFICIAL = Path(__file__).parents[3] / "shared" / "data" / "evaluator" / "coco_official"


def ground_truth(*boxes: tuple[int, list[float]], **extra: Any) -> dict[str, Any]:
    """One picture; `boxes` are (category id, x y w h)."""
    return {
        "images": [{"id": 1, "width": 200, "height": 200}],
        "categories": [{"id": 3, "name": "cat"}, {"id": 90, "name": "dog"}],
        "annotations": [
            {"id": i + 1, "image_id": 1, "category_id": c, "bbox": b, "area": b[2] * b[3], "iscrowd": 0, **extra}
            for i, (c, b) in enumerate(boxes)
        ],
    }


def result(category: int, box: list[float], score: float = 0.9) -> dict[str, Any]:
    return {"image_id": 1, "category_id": category, "bbox": box, "score": score}


def test_official_fake_results_give_the_official_ap() -> None:
    truth_path = OFFICIAL / "tests" / "dataset" / "cocoapi" / "instances_val2014_100.json"
    if not truth_path.is_file():
        pytest.skip(f"the official COCO fixture is not at {OFFICIAL}")
    truth = json.loads(truth_path.read_text())
    results = json.loads((OFFICIAL / "cocoapi_results" / "instances_val2014_fakebbox100_results.json").read_text())
    assert evaluate_boxes(truth, results)["ap"] == pytest.approx(0.5045806987249628, abs=1e-15)


def test_perfect_results_score_one_and_the_absent_class_scores_minus_one() -> None:
    scores = evaluate_boxes(ground_truth((3, [10, 10, 50, 50])), [result(3, [10, 10, 50, 50])])
    assert scores["ap"] == pytest.approx(1) and scores["per_class"] == {"cat": pytest.approx(1), "dog": -1.0}
    assert set(scores) == {*NAMES, "per_class"}


def test_box_of_iou_062_counts_up_to_060() -> None:
    # IoU 31/50: right at the thresholds .50, .55 and .60, wrong at the other seven.
    scores = evaluate_boxes(ground_truth((3, [0, 0, 50, 50])), [result(3, [0, 0, 31, 50])])
    assert scores["ap50"] == pytest.approx(1) and scores["ap75"] == 0 and scores["ap"] == pytest.approx(0.3)


def test_wrong_class_scores_nothing() -> None:
    assert evaluate_boxes(ground_truth((3, [0, 0, 50, 50])), [result(90, [0, 0, 50, 50])])["ap"] == 0


def test_no_results_score_zero() -> None:
    assert evaluate_boxes(ground_truth((3, [0, 0, 50, 50])), [])["ap"] == 0


def test_detection_of_a_crowd_is_neither_right_nor_wrong() -> None:
    truth = ground_truth((3, [0, 0, 50, 50]), (3, [100, 100, 80, 80]))
    truth["annotations"][1]["iscrowd"] = 1
    found = [result(3, [0, 0, 50, 50], 0.5), result(3, [110, 110, 20, 20], 0.9)]
    assert evaluate_boxes(truth, found)["ap"] == pytest.approx(1)
    truth["annotations"].pop()
    assert evaluate_boxes(truth, found)["ap"] == pytest.approx(0.5)


def test_inputs_are_untouched_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    truth, found = ground_truth((3, [0, 0, 50, 50])), [result(3, [0, 0, 50, 50])]
    before = copy.deepcopy((truth, found))
    evaluate_boxes(truth, found)
    assert (truth, found) == before and capfd.readouterr().out == ""
