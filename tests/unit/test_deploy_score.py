"""Scores of predictions from elsewhere, against pycocotools and closed forms; whatever does not fit gets a sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detkit.core.errors import UserError
from detkit.data.dataset import Dataset, coco_ground_truth, load_dataset
from detkit.deploy.score import scored
from detkit.recipe.schema import DataSettings

SQUARE = [[10, 10, 40, 10, 40, 40, 10, 40]]


@pytest.fixture
def labelled(tmp_path: Path) -> tuple[Path, Dataset]:
    """Four pictures of 80x60 px with objects of two classes, masks and a crowd."""
    (tmp_path / "val").mkdir()
    rng = np.random.default_rng(0)
    content: dict[str, Any] = {"images": [], "annotations": [], "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]}
    for number in range(1, 5):
        Image.fromarray(rng.integers(0, 255, (60, 80, 3), np.uint8)).save(tmp_path / "val" / f"{number}.png")
        content["images"].append({"id": number, "file_name": f"{number}.png", "width": 80, "height": 60})
        for index in range(3):
            x, y = (int(v) for v in rng.integers(0, 30, 2))
            polygon = [[x, y, x + 20, y, x + 20, y + 15, x, y + 15]]
            row = {"id": number * 10 + index, "image_id": number, "category_id": (7, 3)[index % 2], "bbox": [x, y, 20, 15]}
            content["annotations"].append(row | {"area": 300, "iscrowd": 0, "segmentation": polygon})
    (tmp_path / "val.json").write_text(json.dumps(content))
    return tmp_path, load_dataset(DataSettings(root=str(tmp_path), val=("val",)), "val")


def moved(dataset: Dataset, kind: str) -> list[dict[str, Any]]:
    """Every object, some px away and some of the wrong class, and one that is not there."""
    rng, rows = np.random.default_rng(1), []
    for truth in coco_ground_truth(dataset)["annotations"]:
        x, y, width, height = (float(v + d) for v, d in zip(truth["bbox"], rng.integers(-3, 4, 4), strict=True))
        category = int(rng.choice([7, 3], p=[0.7, 0.3]))
        row: dict[str, Any] = {"image_id": truth["image_id"], "category_id": category, "score": float(rng.random())}
        corners = [x, y, x + width, y, x + width, y + height, x, y + height]
        rows.append(row | ({"bbox": [x, y, width, height]} if kind == "bbox" else {"segmentation": [corners]}))
    return rows


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_scores_are_those_of_pycocotools(labelled: tuple[Path, Dataset], kind: str) -> None:
    root, dataset = labelled
    rows = moved(dataset, kind)
    if kind == "segm":
        from pycocotools import mask

        for row in rows:
            rle = mask.merge(mask.frPyObjects(row["segmentation"], 60, 80))
            row["segmentation"] = {"size": rle["size"], "counts": rle["counts"].decode()}
    (root / "found.json").write_text(json.dumps(rows))
    values = scored(root / "found.json", dataset)
    truth = COCO(str(root / "val.json"))
    evaluation = COCOeval(truth, truth.loadRes(str(root / "found.json")), kind)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert values["kind"] == kind
    assert 0.05 < values["ap"] < 0.95
    assert [values["ap"], values["ap50"], values["ap75"]] == evaluation.stats[:3].tolist()


def test_curves_and_confusion_agree_with_the_scores(labelled: tuple[Path, Dataset]) -> None:
    root, dataset = labelled
    (root / "found.json").write_text(json.dumps(moved(dataset, "bbox")))
    values = scored(root / "found.json", dataset)
    precision = values["precision_recall"]["precision"]
    assert np.mean([np.mean(curve) for curve in precision.values()]) == pytest.approx(values["ap50"], abs=1e-12)
    counts = np.array(values["confusion"]["counts"])
    objects = [sum(int((image.labels == label).sum()) for image in dataset.images) for label in range(2)]
    assert counts[:2].sum(1).tolist() == objects
    rows = [row for row in json.loads((root / "found.json").read_text()) if row["score"] >= 0.25]
    assert counts[:, :2].sum() == len(rows)


def semantic(root: Path, truth: np.ndarray, ignore_ids: tuple[int, ...] = ()) -> Dataset:
    for folder in ("images/val", "masks/val", "found"):
        (root / folder).mkdir(parents=True)
    Image.fromarray(np.zeros((*truth.shape, 3), np.uint8)).save(root / "images/val/a.png")
    Image.fromarray(truth).save(root / "masks/val/a.png")
    (root / "data.yaml").write_text("names: {0: sky, 5: road, 9: never}\n")
    return load_dataset(DataSettings(root=str(root), format="masks", ignore_ids=ignore_ids), "val")


def test_iou_and_dice_in_closed_form(tmp_path: Path) -> None:
    truth = np.array([[0, 0, 5, 5], [0, 0, 5, 255], [0, 0, 5, 77]], np.uint8)
    dataset = semantic(tmp_path, truth, ignore_ids=(77,))
    prediction = truth.copy()
    prediction[0, 0], prediction[0, 3], prediction[1, 3], prediction[2, 3] = 5, 0, 5, 0
    Image.fromarray(prediction).save(tmp_path / "found/a.png")
    values = scored(tmp_path / "found", dataset, (77,))
    assert values["per_class_iou"] == {"sky": 5 / 7, "road": 3 / 5}
    assert values["per_class_dice"] == {"sky": 10 / 12, "road": 6 / 8}
    assert values["miou"] == pytest.approx((5 / 7 + 3 / 5) / 2)
    assert values["absent"] == ["never"]


def test_predictions_that_do_not_fit_get_a_sentence(tmp_path: Path, labelled: tuple[Path, Dataset]) -> None:
    root, dataset = labelled
    bad: dict[str, Any] = {
        "is not JSON": "{",
        "is not a list": {},
        "row 0 is": [{"image_id": 1}],
        "row 1 is": [{"image_id": 1, "category_id": 7, "bbox": [1, 2, 3, 4], "score": 1}, {"image_id": 1, "bbox": None}],
        "has the category ids 8": [{"image_id": 1, "category_id": 8, "bbox": [1, 2, 3, 4], "score": 1}],
        "results name 1 pictures": [{"image_id": 99, "category_id": 7, "bbox": [1, 2, 3, 4], "score": 1}],
    }
    for said, content in bad.items():
        (root / "bad.json").write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(UserError, match=said):
            scored(root / "bad.json", dataset)
    with pytest.raises(UserError, match="there is no"):
        scored(root / "nothing.json", dataset)
    with pytest.raises(UserError, match="has no mask for 4 of 4"):
        (root / "empty").mkdir()
        scored(root / "empty", dataset)


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (np.zeros((3, 5), np.uint8), "5x3 px, its label 4x3 px"),
        (np.full((3, 4), 6, np.uint8), "has the id 6"),
        (np.zeros((3, 4, 3), np.uint8), "no mask of one channel"),
    ],
)
def test_semantic_predictions_that_do_not_fit_get_a_sentence(tmp_path: Path, pixels: np.ndarray, said: str) -> None:
    dataset = semantic(tmp_path, np.array([[0, 0, 5, 5]] * 3, np.uint8))
    Image.fromarray(pixels).save(tmp_path / "found/a.png")
    with pytest.raises(UserError, match=said):
        scored(tmp_path / "found", dataset)


def test_ids_beyond_a_byte_and_names_that_are_there_twice(tmp_path: Path) -> None:
    truth = np.array([[0, 300], [300, 255]], np.uint16)
    semantic(tmp_path / "wide", np.array([[0, 5], [5, 255]], np.uint8))
    Image.fromarray(truth).save(tmp_path / "wide/masks/val/a.png")
    (tmp_path / "wide/data.yaml").write_text("names: {0: sky, 300: road}\n")
    dataset = load_dataset(DataSettings(root=str(tmp_path / "wide"), format="masks"), "val")
    Image.fromarray(np.array([[0, 300], [0, 7]], np.uint16)).save(tmp_path / "wide/found/a.png")
    assert scored(tmp_path / "wide/found", dataset)["per_class_iou"] == {"sky": 1 / 2, "road": 1 / 2}
    (tmp_path / "wide/found/other").mkdir()
    Image.fromarray(truth).save(tmp_path / "wide/found/other/a.png")
    with pytest.raises(UserError, match="have the same name"):
        scored(tmp_path / "wide/found", dataset)


def test_masks_derived_from_panoptic_labels_score_one_against_themselves(shared_data: Path) -> None:
    folder = shared_data / "coco128"
    settings = DataSettings(root=str(folder), format="masks", images="images", labels="semantic_masks/masks", val=("val2017",))
    dataset = load_dataset(settings, "val")
    assert len(dataset.images) == 100
    values = scored(folder / "semantic_masks/masks/val2017", dataset)
    assert values["miou"] == values["dice"] == values["pixel_accuracy"] == 1.0
    assert "giraffe" in values["absent"]
