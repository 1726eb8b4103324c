"""The same boxes whichever format they came in, on the real data; faults of the real data are found by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detkit.data.dataset import load_dataset, load_index, located
from detkit.data.examine import examined
from detkit.data.index import Index
from detkit.data.masks import bitmap, cleaned
from detkit.recipe.schema import DataSettings
from tests.conftest import detkit

pytestmark = pytest.mark.slow

Objects = dict[str, list[tuple[Any, ...]]]


def index_of(root: Path, part: str, **settings: Any) -> Index:
    chosen, _ = located(DataSettings(root=str(root), verify="header", on_bad="skip", **settings))
    return load_index(chosen, (part,))


def objects_of(index: Index) -> Objects:
    """(class name, x1, y1, x2, y2) of every object by file name, sorted."""
    rows = {
        image.path.name: sorted(
            (index.classes[label], *box) for label, box in zip(image.labels.tolist(), image.boxes_xyxy.tolist(), strict=True)
        )
        for image in index.table
    }
    return {name: boxes for name, boxes in rows.items() if boxes}


def coco_boxes(path: Path) -> Objects:
    """The same, straight from a COCO file."""
    content = json.loads(path.read_text())
    names = {c["id"]: c["name"] for c in content["categories"]}
    files = {i["id"]: i["file_name"] for i in content["images"]}
    found: Objects = {}
    for row in content["annotations"]:
        x, y, w, h = row["bbox"]
        found.setdefault(files[row["image_id"]], []).append((names[row["category_id"]], x, y, x + w, y + h))
    return {name: sorted(boxes) for name, boxes in found.items()}


# Labels folder, part, format, largest difference in px. VOC counts pixels from 1, which its writer here did not.
FORMATS = {
    "coco, one file a tool wrote": ("gts/coco_format_v1", "gts/coco_format_v1/instances_default.json", "coco", 1e-3),
    "coco, another": ("gts/coco_format_v2", "gts/coco_format_v2/instances_v2.json", "coco", 1e-3),
    "voc": ("gts/pascalvoc_format", ".", "voc", 1.0),
    "imagenet": ("gts/imagenet_format/Annotations", ".", "voc", 1.0),
    "labelme": ("gts/labelme_format", ".", "labelme", 1e-3),
    "cvat": ("gts/cvat_format", ".", "cvat", 1e-3),
    "openimages": ("gts/openimages_format", "all_bounding_boxes", "openimages", 1e-3),
    "yolo": ("gts/yolo_format", "obj_train_data", "yolo", 1e-2),
}


@pytest.mark.parametrize("name", FORMATS)
def test_273_boxes_are_the_same_in_every_format(shared_data: Path, name: str) -> None:
    root = shared_data / "label_formats/data/database"
    labels, part, format_name, tolerance = FORMATS[name]
    index = index_of(root, part, labels=labels, images="images", format="auto" if format_name != "yolo" else "yolo")
    assert index.findings == () and len(index.table) == 100
    expected, actual = coco_boxes(root / "gts/coco_format_v1/instances_default.json"), objects_of(index)
    assert sum(map(len, actual.values())) == 273 and actual.keys() == expected.keys()
    for file_name, boxes in expected.items():
        assert [box[0] for box in boxes] == [box[0] for box in actual[file_name]]
        np.testing.assert_allclose([box[1:] for box in actual[file_name]], [box[1:] for box in boxes], atol=tolerance)


def test_yolo_boxes_of_coco_pictures_are_those_of_its_json(shared_data: Path) -> None:
    """The YOLO files lack the ten crowds; boxes agree within the rounding of six digits and of clipping."""
    root = shared_data / "coco128"
    index = index_of(root, "train", format="yolo", labels="yolo_detection/labels", images="images")
    expected = load_dataset(DataSettings(root=str(root), train=("instances_train2017",)), "train")
    matched = total = 0
    by_name = {image.path.name: image for image in index.table}
    for image in expected.images:
        total += int((~image.crowd).sum())
        boxes = by_name[image.path.name].boxes_xyxy
        for box in image.boxes_xyxy[~image.crowd]:
            matched += bool(len(boxes)) and float(np.abs(boxes - box).max(1).min()) < 0.6
    assert total == 929 == sum(len(image.boxes_xyxy) for image in index.table) and matched == total
    named = {(f.kind, Path(f.place).name) for f in index.findings if "label" in f.kind}
    assert {name for kind, name in named if kind == "label without picture"} == {"000000000656.txt", "000000000659.txt"}
    assert {name for kind, name in named if kind == "picture without label"} == {"000000000250.jpg", "000000000508.jpg"}


@pytest.mark.slow
def test_grey_pictures_are_found_by_name(shared_data: Path) -> None:
    found = examined(DataSettings(root=str(shared_data / "coco128"))).findings
    assert {Path(f.place).name for f in found if f.kind == "converted colours"} == {"000000000086.jpg", "000000007888.jpg"}


def test_blood_cells_have_two_boxes_without_area(shared_data: Path) -> None:
    found = examined(DataSettings(root=str(shared_data / "bccd")))
    names = {f.place.rpartition("/")[2] for f in found.findings}
    assert names == {"BloodImage_00343.xml: object 4", "BloodImage_00338.xml: object 13"} and found.has_errors


@pytest.mark.slow
def test_masks_of_coco_and_nuclei_equal_pycocotools(shared_data: Path) -> None:
    from pycocotools.coco import COCO

    for root, part in (("dsb2018", "annotations/instances_val.json"), ("coco128", "annotations/instances_train2017.json")):
        path = shared_data / root / part
        if not path.is_file():
            path = sorted((shared_data / root / "annotations").glob("*.json"))[-1]
        truth = COCO(str(path))
        rows = list(truth.anns.values())[:300]
        for row in rows:
            size = truth.imgs[row["image_id"]]
            kept, _ = cleaned(row["segmentation"], size["height"], size["width"])
            np.testing.assert_array_equal(bitmap(kept, size["height"], size["width"]), truth.annToMask(row).astype(bool))


@pytest.mark.slow
def test_semantic_masks_of_street_scenes(shared_data: Path) -> None:
    index = index_of(shared_data / "camvid", "train", ignore_ids=(11,))
    assert len(index.table) == 367 and index.findings == () and index.classes == tuple(map(str, range(11)))
    assert all(image.semantic is not None and image.semantic.parent.name == "trainannot" for image in index.table)


@pytest.mark.slow
def test_doctor_prints_findings_and_exits_3_on_errors(shared_data: Path, tmp_path: Path) -> None:
    done = detkit("doctor", "data", shared_data / "bccd", "--json", cwd=tmp_path, check=False)
    values = json.loads(done.stdout)
    assert done.returncode == 3 and values["num_errors"] == 2 and values["parts"]["train"]["num_pictures"] == 205
    assert [row["kind"] for row in values["findings"]] == ["empty box"] and (tmp_path / "contact-sheet.png").is_file()
    text = detkit("doctor", "data", shared_data / "bccd", cwd=tmp_path, check=False).stdout
    assert "ERROR  2 x empty box" in text and "training: leaves the object out" in text and "mend:" in text


@pytest.mark.slow
def test_doctor_on_clean_scenes_exits_0_and_missing_folders_are_a_sentence(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes/smoke.yaml"
    assert "no fault found" in detkit("doctor", "data", recipe, cwd=tmp_path).stdout
    for target in ("nowhere", "."):
        done = detkit("doctor", "data", target, cwd=tmp_path, check=False)
        assert done.returncode == 1 and "try:" in done.stderr and "Traceback" not in done.stderr
