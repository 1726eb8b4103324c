"""Scores against the official fixtures, pycocotools' stored vectors and figures worked by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detkit.core.errors import UserError
from detkit.metrics.coco import evaluate, evaluate_boxes, evaluate_masks, evaluated, precision_recall
from detkit.metrics.confusion import DetectionConfusion, SemanticConfusion

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "ap"), [("bbox", 0.5045806987249628), ("segm", 0.3195452758576433)])
def test_official_fixtures_to_the_last_digit(shared_data: Path, kind: Any, ap: float) -> None:
    root = shared_data / "evaluator/coco_official"
    truth = root / "tests/dataset/cocoapi/instances_val2014_100.json"
    results = json.loads((root / f"cocoapi_results/instances_val2014_fake{kind}100_results.json").read_text())
    for engine in ("hotcoco", "pycocotools"):
        pytest.importorskip(engine)
        assert evaluated(json.loads(truth.read_text()), results, kind, engine=engine).stats[0] == ap
    assert evaluate(json.loads(truth.read_text()), results, kind)["ap"] == ap


def edge_cases() -> list[str]:
    from tests.conftest import SHARED

    path = SHARED / "evaluator/coco_edge_cases/expected_pycocotools.json"
    return sorted(json.loads(path.read_text())) if path.is_file() else []


@pytest.mark.parametrize("case", edge_cases() or [pytest.param("", marks=pytest.mark.skip(reason="real data absent"))])
def test_edge_cases_give_the_stored_vectors(shared_data: Path, case: str) -> None:
    root = shared_data / "evaluator/coco_edge_cases"
    expected = json.loads((root / "expected_pycocotools.json").read_text())[case]
    name, kind = case.split(":")
    content = json.loads((root / name).read_text())
    known = {image["id"] for image in content["images"]}
    results = content.pop("detections")
    if any(row["image_id"] not in known for row in results):
        with pytest.raises(UserError, match="pictures that the ground truth lacks"):
            evaluate(content, results, kind)  # type: ignore[arg-type]
        results = [row for row in results if row["image_id"] in known]
    for engine in ("hotcoco", "pycocotools"):
        pytest.importorskip(engine)
        assert list(evaluated(content, results, kind, engine=engine).stats)[:12] == expected  # type: ignore[arg-type]


def small(seed: int, num_images: int = 12) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Random objects and detections near them, with crowds, ties and pictures without anything."""
    rng = np.random.default_rng(seed)
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image in range(1, num_images + 1):
        for _ in range(int(rng.integers(0, 6))):
            x, y, w, h = (float(v) for v in rng.uniform(5, 60, 4))
            category = int(rng.integers(1, 4))
            row = {"id": len(annotations) + 1, "image_id": image, "category_id": category, "bbox": [x, y, w, h], "area": w * h}
            annotations.append(row | {"iscrowd": int(rng.random() < 0.1)})
            for _ in range(int(rng.integers(0, 4))):
                dx, dy = rng.normal(0, 4, 2)
                box = [x + float(dx), y + float(dy), w, h]
                results.append({"image_id": image, "category_id": category, "bbox": box, "score": round(float(rng.random()), 1)})
    images = [{"id": i, "width": 200, "height": 200} for i in range(1, num_images + 1)]
    return {"images": images, "annotations": annotations, "categories": [{"id": i, "name": f"c{i}"} for i in (1, 2, 3, 4)]}, results


@pytest.mark.parametrize("seed", range(15))
def test_both_engines_give_the_same_tables(seed: int) -> None:
    pytest.importorskip("hotcoco")
    truth, results = small(seed)
    one, other = (evaluated(truth, results, "bbox", engine=engine) for engine in ("hotcoco", "pycocotools"))
    for name in ("precision", "recall", "scores"):
        np.testing.assert_array_equal(one.eval[name], other.eval[name])
    assert list(one.stats) == list(other.stats)


@pytest.mark.parametrize("kind", ["annotation id 0", "category twice", "NaN"])
def test_content_on_which_the_engines_differ_is_scored_by_pycocotools(kind: str) -> None:
    for seed in range(6):
        truth, results = small(seed)
        if kind == "annotation id 0":
            truth["annotations"] = [row | {"id": row["id"] - 1} for row in truth["annotations"]]
        elif kind == "category twice":
            truth["categories"].append(truth["categories"][0])
        else:
            results[0]["score"] = float("nan")
        ours, theirs = evaluated(truth, results, "bbox"), evaluated(truth, results, "bbox", engine="pycocotools")
        assert type(ours) is type(theirs)
        np.testing.assert_array_equal(ours.stats, theirs.stats)


@pytest.mark.parametrize("engine", ["hotcoco", "pycocotools"])
def test_nothing_detected_and_string_ids(engine: str) -> None:
    pytest.importorskip(engine)
    truth, results = small(4)
    assert evaluated(truth, [], "bbox", engine=engine).stats[0] == 0
    named = [
        [{**row, key: f"n{row[key]}"} for row in rows]
        for rows, key in ((truth["images"], "id"), (truth["annotations"], "image_id"), (results, "image_id"))
    ]
    strings = {**truth, "images": named[0], "annotations": named[1]}
    assert list(evaluated(strings, named[2], "bbox", engine=engine).stats) == list(
        evaluated(truth, results, "bbox", engine=engine).stats
    )


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 20])
def test_sharded_scores_equal_those_of_one_process(num_ranks: int) -> None:
    truth, results = small(3)
    shares = [[row for row in results if (row["image_id"] - 1) % num_ranks == rank] for rank in range(num_ranks)]
    gathered = sorted((row for share in shares for row in share), key=lambda row: row["image_id"])
    assert evaluate_boxes(truth, gathered) == evaluate_boxes(truth, results)


def test_per_class_figures_are_the_means_of_the_whole() -> None:
    truth, results = small(1)
    scores = evaluate_boxes(truth, results)
    valid = [v for v in scores["per_class"].values() if v >= 0]
    assert scores["per_class"]["c4"] == -1 and np.mean(valid) == pytest.approx(scores["ap"], abs=1e-12)
    assert np.mean([v for v in scores["per_class_ar"].values() if v >= 0]) == pytest.approx(scores["ar_100"], abs=1e-12)
    curves = precision_recall(truth, results, "bbox", iou=0.5)
    assert "c4" not in curves["precision"] and len(curves["recall"]) == 101
    assert np.mean([np.mean(v) for v in curves["precision"].values()]) == pytest.approx(scores["ap50"], abs=1e-12)
    assert all(np.diff(v).max() <= 0 for v in curves["precision"].values()), "the envelope never rises"
    with pytest.raises(UserError, match="none of"):
        precision_recall(truth, results, "bbox", iou=0.52)


def test_masks_as_polygons_and_both_run_lengths_score_alike() -> None:
    from pycocotools import mask as coco_masks

    polygon = [[10, 10, 40, 10, 40, 30, 10, 30]]
    rle = coco_masks.merge(coco_masks.frPyObjects(polygon, 60, 80))
    text = {"size": [60, 80], "counts": rle["counts"].decode()}
    flat = coco_masks.decode(rle).T.reshape(-1)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flat, [0]])))
    lengths = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    images, categories = [{"id": 1, "width": 80, "height": 60}], [{"id": 1, "name": "c"}]
    for given in (polygon, text, {"size": [60, 80], "counts": lengths}):
        row = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 10, 30, 20], "area": 600, "iscrowd": 0, "segmentation": given}
        result = [{"image_id": 1, "category_id": 1, "segmentation": text, "score": 0.5}]
        assert evaluate_masks({"images": images, "annotations": [row], "categories": categories}, result)["ap"] == pytest.approx(1)


def test_results_of_unknown_pictures_are_named() -> None:
    truth, results = small(2)
    with pytest.raises(UserError, match="2 pictures that the ground truth lacks: 98, 99"):
        evaluate_boxes(truth, [*results, *({"image_id": i, "category_id": 1, "bbox": [1, 1, 2, 2], "score": 1.0} for i in (99, 98))])


def test_detection_confusion_by_hand() -> None:
    truth = np.array([[0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60], [100, 100, 200, 200]], np.float32)
    labels, crowd = np.array([0, 1, 1, 0]), np.array([False, False, False, True])
    found = np.array(
        [[0, 0, 10, 9], [20, 20, 30, 29], [0, 0, 10, 8], [120, 120, 130, 130], [70, 70, 80, 80], [50, 50, 60, 60]], np.float32
    )
    scores, names = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.1]), np.array([0, 0, 0, 1, 1, 1])
    whole = DetectionConfusion(2)
    whole.add(truth, labels, found, scores, names, crowd=crowd)
    # One hit of class 0, class 1 taken for 0, one miss (its detection scores too low), a second detection of the first
    # object and one of nothing; what lies in the crowd is excused.
    np.testing.assert_array_equal(whole.counts, [[1, 0, 0], [1, 0, 1], [1, 1, 0]])
    parts = [DetectionConfusion(2), DetectionConfusion(2)]
    for part in parts:
        part.add(truth, labels, found, scores, names, crowd=crowd)
    parts[0].merge(parts[1])
    np.testing.assert_array_equal(parts[0].counts, 2 * whole.counts)
    empty = DetectionConfusion(2)
    empty.add(truth[:0], labels[:0], found[:0], scores[:0], names[:0])
    assert not empty.counts.any()


def test_semantic_scores_by_hand_and_classes_absent_everywhere() -> None:
    confusion = SemanticConfusion(4)
    confusion.add(np.array([[0, 0, 1, 255]]), np.array([[0, 1, 1, 3]]))
    scores = confusion.scores()
    np.testing.assert_allclose(scores.iou[:2], [1 / 2, 1 / 2])
    np.testing.assert_allclose(scores.dice[:2], [2 / 3, 2 / 3])
    assert scores.absent == (2, 3) and scores.mean_iou == 0.5 and scores.accuracy == pytest.approx(2 / 3)
    plain = scores.as_dict(("a", "b", "c", "d"))
    assert plain["absent"] == ["c", "d"] and set(plain["per_class_iou"]) == {"a", "b"}
    with pytest.raises(ValueError, match="classes end at 3"):
        confusion.add(np.array([[7]]), np.array([[0]]))
    with pytest.raises(ValueError, match="same shape"):
        confusion.add(np.zeros((1, 2)), np.zeros((2, 1)))


def test_semantic_shares_merge_to_the_same_digits() -> None:
    rng = np.random.default_rng(0)
    pictures = [(rng.integers(0, 6, (20, 30)), rng.integers(0, 6, (20, 30))) for _ in range(9)]
    whole, first, second = SemanticConfusion(6), SemanticConfusion(6), SemanticConfusion(6)
    for index, (truth, prediction) in enumerate(pictures):
        whole.add(truth, prediction)
        (first if index % 3 else second).add(truth, prediction)
    first.merge(second)
    assert first.scores().mean_iou == whole.scores().mean_iou
    np.testing.assert_array_equal(first.scores().iou, whole.scores().iou)
