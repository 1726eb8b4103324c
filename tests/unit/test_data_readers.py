"""VOC and COCO labels become the same structures, and everything left out is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detkit.core.errors import UserError
from detkit.data.dataset import coco_ground_truth, load_dataset
from detkit.data.geometry import Geometry
from detkit.data.training import TrainingSamples
from detkit.metrics.coco import evaluate_boxes
from detkit.recipe.schema import AugmentSettings, DataSettings

SHARED = Path(__file__).parents[3] / "shared" / "data"
Box = tuple[str, float, float, float, float]


def write_picture(path: Path, hw: tuple[int, int] = (60, 80)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*hw, 3), 128, np.uint8)).save(path)


def write_voc(root: Path, objects: dict[str, list[Box]], *, part: str = "train", difficult: int = 0) -> DataSettings:
    """A VOC folder of 80x60 pictures; a box is (class, xmin, ymin, xmax, ymax) as in the XML."""
    for stem, boxes in objects.items():
        write_picture(root / "JPEGImages" / f"{stem}.jpg")
        xml = "".join(
            f"<object><name>{n}</name><difficult>{difficult}</difficult><bndbox><xmin>{a}</xmin><ymin>{b}</ymin>"
            f"<xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
            for n, a, b, c, d in boxes
        )
        (root / "Annotations").mkdir(exist_ok=True)
        (root / "Annotations" / f"{stem}.xml").write_text(f"<annotation>{xml}</annotation>")
    lists = root / "ImageSets" / "Main"
    lists.mkdir(parents=True, exist_ok=True)
    (lists / f"{part}.txt").write_text("\n".join(objects) + "\n")
    return DataSettings(root=str(root))


def write_coco(root: Path, annotations: list[dict[str, Any]], *, part: str = "train", num_images: int = 1) -> DataSettings:
    """A COCO folder of 80x60 pictures with categories 90, 3 and 17, listed out of order."""
    for number in range(1, num_images + 1):
        write_picture(root / part / f"{number}.png")
    content = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 80, "height": 60} for n in range(1, num_images + 1)],
        "annotations": [{"id": i + 100, "image_id": 1, "iscrowd": 0, **row} for i, row in enumerate(annotations)],
        "categories": [{"id": i, "name": n} for i, n in ((90, "toothbrush"), (3, "car"), (17, "cat"))],
    }
    (root / "annotations").mkdir(exist_ok=True)
    (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return DataSettings(root=str(root))


def test_voc_boxes_become_right_and_bottom_exclusive(tmp_path: Path) -> None:
    settings = write_voc(tmp_path, {"a": [("dog", 1, 1, 80, 60), ("cat", 11, 21, 30, 40)]})
    dataset = load_dataset(settings, "train")
    assert dataset.classes == ("cat", "dog") and dataset.findings == ()
    np.testing.assert_array_equal(dataset.images[0].boxes_xyxy, [[0, 0, 80, 60], [10, 20, 30, 40]])
    assert dataset.images[0].labels.tolist() == [1, 0] and dataset.images[0].boxes_xyxy.dtype == np.float32


def test_coco_categories_with_gaps_are_labelled_by_id_and_return_to_it(tmp_path: Path) -> None:
    rows = [{"category_id": 90, "bbox": [1, 2, 30, 40]}, {"category_id": 3, "bbox": [0, 0, 80, 60]}]
    dataset = load_dataset(write_coco(tmp_path, rows), "train")
    assert dataset.classes == ("car", "cat", "toothbrush") and dataset.category_ids == (3, 17, 90)
    assert dataset.images[0].labels.tolist() == [2, 0]
    np.testing.assert_array_equal(dataset.images[0].boxes_xyxy, [[1, 2, 31, 42], [0, 0, 80, 60]])
    truth = coco_ground_truth(dataset)
    assert [(row["category_id"], row["bbox"]) for row in truth["annotations"]] == [(90, [1, 2, 30, 40]), (3, [0, 0, 80, 60])]


def test_classes_of_the_recipe_set_the_order_and_leave_out_the_rest(tmp_path: Path) -> None:
    coco = write_coco(tmp_path / "c", [{"category_id": c, "bbox": [0, 0, 9, 9]} for c in (3, 90, 17)])
    voc = write_voc(tmp_path / "v", {"a": [(n, 1, 1, 9, 9) for n in ("car", "toothbrush", "cat")]})
    label_files = (tmp_path / "c/annotations/instances_train.json", tmp_path / "v/Annotations/a.xml")
    for settings, place in ((coco, f"{label_files[0]}: annotation 102"), (voc, f"{label_files[1]}: object 3")):
        dataset = load_dataset(settings.model_copy(update={"classes": ("toothbrush", "car")}), "train")
        assert dataset.classes == ("toothbrush", "car") and dataset.images[0].labels.tolist() == [1, 0]
        assert [(p.kind, p.place) for p in dataset.findings] == [("unused class", place)]
        with pytest.raises(UserError, match="bicycle"):
            load_dataset(settings.model_copy(update={"classes": ("bicycle",)}), "train")


@pytest.mark.parametrize(
    ("kind", "bbox"),
    [
        ("empty box", [5, 5, 0, 10]),
        ("empty box", [5, 5, 10, 0]),
        ("empty box", [5, 5, -3, 4]),
        ("box mostly outside", [200, 5, 10, 10]),
        ("box mostly outside", [1e9, 1e9, 1e9, 1e9]),
        ("box not finite", [5, 5, float("nan"), 10]),
        ("box not finite", [5, 5, float("inf"), 10]),
        ("no box", None),
        ("no box", [5, 5, 10]),
        ("no box", [5, 5, "wide", 10]),
    ],
)
def test_boxes_that_cannot_be_used_are_left_out_and_named(tmp_path: Path, kind: str, bbox: list[float]) -> None:
    rows = [{"category_id": 3, "bbox": [1, 1, 5, 5]}, {"category_id": 3, "bbox": bbox}]
    dataset = load_dataset(write_coco(tmp_path, rows), "train")
    place = f"{tmp_path}/annotations/instances_train.json: annotation 101"
    assert [(p.kind, p.place) for p in dataset.findings] == [(kind, place)]
    np.testing.assert_array_equal(dataset.images[0].boxes_xyxy, [[1, 1, 6, 6]])


@pytest.mark.parametrize("corners", [(7, 7, 7, 7), (7, 7, 7, 20), (9, 9, 3, 3)])
def test_voc_boxes_without_area_are_named_by_object(tmp_path: Path, corners: tuple[float, float, float, float]) -> None:
    dataset = load_dataset(write_voc(tmp_path, {"a": [("x", 1, 1, 9, 9), ("x", *corners)]}), "train")
    assert [(p.kind, p.place) for p in dataset.findings] == [("empty box", f"{tmp_path}/Annotations/a.xml: object 2")]
    assert len(dataset.images[0].boxes_xyxy) == 1


def test_boxes_are_clipped_to_the_picture(tmp_path: Path) -> None:
    boxes = [[-5, -5, 60, 40], [-0.5, 20, 40, 40.5], [-50, 0, 70, 60]]
    settings = write_coco(tmp_path, [{"category_id": 3, "bbox": bbox} for bbox in boxes])
    dataset = load_dataset(settings, "train")
    np.testing.assert_array_equal(dataset.images[0].boxes_xyxy, [[0, 0, 55, 35], [0, 20, 39.5, 60]])
    place = f"{tmp_path}/annotations/instances_train.json: annotation 10"
    found = [(p.kind, p.place) for p in dataset.findings]
    assert found == [("box mostly outside", f"{place}2"), ("box partly outside", f"{place}0")]
    clipped = load_dataset(settings.model_copy(update={"on_bad": "clip"}), "train")
    np.testing.assert_array_equal(clipped.images[0].boxes_xyxy[2], [0, 0, 20, 60])


def test_damaged_missing_and_mislabelled_pictures_are_left_out_and_named(tmp_path: Path) -> None:
    settings = write_coco(tmp_path, [{"category_id": 3, "bbox": [0, 0, 9, 9]}], num_images=4)
    whole = (tmp_path / "train" / "2.png").read_bytes()
    (tmp_path / "train" / "2.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "train" / "3.png").unlink()
    write_picture(tmp_path / "train" / "4.png", (33, 44))
    dataset = load_dataset(settings, "train")
    assert [image.image_id for image in dataset.images] == [1]
    found = {(p.kind, Path(p.place).name) for p in dataset.findings}
    assert found == {("unreadable picture", "2.png"), ("missing picture", "3.png"), ("wrong size", "4.png")}


def test_truncated_jpeg_of_a_voc_list_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    settings = write_voc(tmp_path, {"a": [("x", 1, 1, 9, 9)], "b": [("x", 1, 1, 9, 9)]})
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    path = tmp_path / "JPEGImages" / "b.jpg"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    dataset = load_dataset(settings, "train")
    assert [image.path.name for image in dataset.images] == ["a.jpg"]
    assert [(p.kind, p.place) for p in dataset.findings] == [("unreadable picture", str(path))]


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_crowds_are_scored_as_crowds_and_never_trained_on(tmp_path: Path, kind: str) -> None:
    if kind == "coco":
        rows = [{"category_id": 3, "bbox": [0, 0, 40, 40]}, {"category_id": 3, "bbox": [0, 0, 80, 60], "iscrowd": 1}]
        dataset = load_dataset(write_coco(tmp_path, rows), "train")
        flags = [0, 1]
    else:
        dataset = load_dataset(write_voc(tmp_path, {"a": [("x", 1, 1, 80, 60)]}, difficult=1), "train")
        flags = [1]
    assert [row["iscrowd"] for row in coco_ground_truth(dataset)["annotations"]] == flags
    still = AugmentSettings(mosaic=0, scale=(1, 1), translate=0, flip_horizontal=0)
    _, boxes, _ = TrainingSamples(dataset, Geometry(64), still, seed=0, cache_mb=1).sample(0, 0, closed=False)
    assert len(boxes) == flags.count(0)


def test_small_and_large_go_by_the_area_that_the_labels_give(tmp_path: Path) -> None:
    rows = [{"category_id": 3, "bbox": [0, 0, 40, 40], "area": 900.0}, {"category_id": 3, "bbox": [1, 0, 40, 40]}]
    truth = coco_ground_truth(load_dataset(write_coco(tmp_path, rows), "train"))
    assert [row["area"] for row in truth["annotations"]] == [900, 1600]


def test_ground_truth_given_back_as_detections_scores_one(tmp_path: Path) -> None:
    rows = [{"category_id": 90, "bbox": [1, 2, 30, 40]}, {"category_id": 3, "bbox": [0, 0, 80, 60]}]
    truth = coco_ground_truth(load_dataset(write_coco(tmp_path, rows), "train"))
    found = [{k: row[k] for k in ("image_id", "category_id", "bbox")} | {"score": 0.5} for row in truth["annotations"]]
    assert evaluate_boxes(truth, found)["ap"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (lambda root: (root / "Annotations" / "a.xml").write_text("<annotation"), "a.xml"),
        (lambda root: (root / "Annotations" / "a.xml").unlink(), "a.xml"),
        (lambda root: (root / "ImageSets" / "Main" / "train.txt").unlink(), "train.txt"),
        (lambda root: (root / "JPEGImages" / "a.jpg").unlink(), "no usable picture"),
    ],
)
def test_labels_that_cannot_be_used_are_one_sentence_naming_the_file(tmp_path: Path, break_it: Any, named: str) -> None:
    settings = write_voc(tmp_path, {"a": [("x", 1, 1, 9, 9)]})
    break_it(tmp_path)
    with pytest.raises(UserError, match=named):
        load_dataset(settings, "train")


@pytest.mark.parametrize("content", ["[1, 2]", "{", '{"images": []}', '{"images": [{"id": 1}], "annotations": [], "categories": []}'])
def test_json_that_is_not_coco_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(UserError, match=r"train\.json"):
        load_dataset(DataSettings(root=str(tmp_path), format="coco"), "train")


@pytest.mark.parametrize("root", ["", "/does/not/exist", "empty"])
def test_root_that_holds_no_data_set_says_what_to_set(tmp_path: Path, root: str) -> None:
    place = str(tmp_path) if root == "empty" else root
    with pytest.raises(UserError) as caught:
        load_dataset(DataSettings(root=place), "train")
    assert "data.root" in caught.value.hint


def test_repeated_image_ids_over_two_files_are_refused(tmp_path: Path) -> None:
    write_coco(tmp_path, [], part="one")
    settings = write_coco(tmp_path, [], part="two")
    dataset = load_dataset(settings.model_copy(update={"train": ("one", "two")}), "train")
    assert [(p.kind, p.place) for p in dataset.findings][:1] == [
        ("duplicate picture", f"{tmp_path}/annotations/instances_two.json: images[0]")
    ]


def test_blood_cells_load_with_their_two_empty_boxes_named() -> None:
    root = SHARED / "bccd"
    if not root.is_dir():
        pytest.skip(f"the blood-cell photographs are not at {root}")
    dataset = load_dataset(DataSettings(root=str(root), train=("train", "val"), val=("test",)), "train")
    assert len(dataset.images) == 292 and dataset.classes == ("Platelets", "RBC", "WBC")
    named = {p.place for p in dataset.findings if p.kind == "empty box"}
    assert named == {f"{root}/Annotations/BloodImage_00{n}" for n in ("343.xml: object 4", "338.xml: object 13")}
    assert all((i.boxes_xyxy[:, 2:] > i.boxes_xyxy[:, :2]).all() for i in dataset.images)


def test_coco_pictures_load_with_their_80_categories() -> None:
    root = SHARED / "coco128"
    if not root.is_dir():
        pytest.skip(f"the COCO pictures are not at {root}")
    dataset = load_dataset(DataSettings(root=str(root), train=("instances_train2017",)), "train")
    assert len(dataset.images) == 128 and len(dataset.classes) == 80 and dataset.category_ids[-1] == 90
    assert sum(int(image.crowd.sum()) for image in dataset.images) == 10
