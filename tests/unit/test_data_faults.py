"""Every kind of fault: an input that has it, the finding with its place, and what training then does."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detkit.core.errors import GateError
from detkit.data.dataset import Dataset, load_dataset, refuse_errors
from detkit.data.examine import examined
from detkit.data.findings import FAULTS
from detkit.data.images import read_image
from detkit.recipe.schema import DataSettings

GOOD = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 10, 20, 20], "iscrowd": 0, "area": 400}
SQUARE = [[10, 10, 30, 10, 30, 30, 10, 30]]


def picture(path: Path, wh: tuple[int, int] = (80, 60), seed: int = 0, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (wh[1] // 4, wh[0] // 4, 3), np.uint8)
    Image.fromarray(noise).resize(wh).save(path, **options)
    return path


def coco(root: Path, annotations: list[Any], images: list[dict[str, Any]] | None = None, **content: Any) -> DataSettings:
    """A COCO folder whose train.json has these records; pictures a.png of 80x60 px unless `images` says otherwise."""
    if images is None:
        images = [{"id": 1, "file_name": "a.png", "width": 80, "height": 60}]
        picture(root / "train/a.png")
    categories = [{"id": 1, "name": "cat"}, {"id": 5, "name": "dog"}]
    (root / "train.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories} | content))
    return DataSettings(root=str(root), format="coco")


def yolo(root: Path, text: str | bytes, *, name: str = "a", **settings: Any) -> DataSettings:
    """A YOLO folder with one picture and its label file."""
    picture(root / f"images/train/{name}.png")
    (root / "labels/train").mkdir(parents=True, exist_ok=True)
    content = text if isinstance(text, bytes) else text.encode()
    (root / f"labels/train/{name}.txt").write_bytes(content)
    (root / "data.yaml").write_text("train: images/train\nnames: [cat, dog]\n")
    return DataSettings(root=str(root), format="yolo", **settings)


def found(dataset: Dataset) -> list[tuple[str, str]]:
    return [(finding.kind, finding.place) for finding in dataset.findings]


def refused(dataset: Dataset, settings: DataSettings) -> bool:
    try:
        refuse_errors(dataset, "train", settings)
    except GateError as error:
        assert error.exit_code == 3
        return True
    return False


COCO_OBJECTS = {
    "empty box": ({"bbox": [5, 5, 10, 0]}, 1),
    "box not finite": ({"bbox": [5, 5, 1e400, 4]}, 1),
    "no box": ({"bbox": None}, 1),
    "box mostly outside": ({"bbox": [1e9, 0, 1e9, 4]}, 1),
    "box partly outside": ({"bbox": [-5, 5, 20, 20]}, 2),
    "negative area": ({"bbox": [1, 2, 9, 9], "area": -4}, 2),
    "duplicate object": ({}, 1),
    "orphan annotation": ({"image_id": 77}, 1),
    "unknown class": ({"category_id": 9}, 1),
    "odd polygon": ({"bbox": [1, 2, 9, 9], "segmentation": [[1, 2, 3, 4, 5, 6, 7]]}, 2),
    "degenerate polygon": ({"bbox": [1, 2, 9, 9], "segmentation": [[1, 2, 1, 2, 5, 6]]}, 2),
    "self-crossing polygon": ({"bbox": [1, 2, 9, 9], "segmentation": [[0, 0, 9, 9, 9, 0, 0, 8]]}, 2),
    "flat polygon": ({"bbox": [1, 2, 9, 9], "segmentation": SQUARE[0]}, 2),
    "run lengths as polygon": ({"bbox": [1, 2, 9, 9], "segmentation": [[2000, 2800]]}, 2),
    "bad run lengths": ({"bbox": [1, 2, 9, 9], "segmentation": {"size": [60, 80], "counts": [1, 2, 3]}}, 2),
}


@pytest.mark.parametrize("kind", COCO_OBJECTS)
def test_faults_of_coco_objects(tmp_path: Path, kind: str) -> None:
    change, num_kept = COCO_OBJECTS[kind]
    settings = coco(tmp_path, [GOOD, GOOD | {"id": 2} | change])
    dataset = load_dataset(settings, "train")
    assert found(dataset) == [(kind, f"{tmp_path}/train.json: annotation 2")]
    assert len(dataset.images[0].boxes_xyxy) == num_kept
    assert refused(dataset, settings) == (FAULTS[kind].severity == "error")
    assert not refused(dataset, settings.model_copy(update={"on_bad": "skip"}))


@pytest.mark.parametrize("segmentation", [[], None])
def test_no_segmentation_is_no_fault_and_areas_come_from_boxes(tmp_path: Path, segmentation: Any) -> None:
    row = {key: value for key, value in GOOD.items() if key != "area"} | {"segmentation": segmentation}
    dataset = load_dataset(coco(tmp_path, [row]), "train")
    assert found(dataset) == [] and dataset.images[0].areas_px.tolist() == [400]


@pytest.mark.parametrize("crowd", [0, 1])
@pytest.mark.parametrize("counts", [[610, 20, 4170], "compressed"])
def test_both_kinds_of_run_lengths_are_read_whatever_iscrowd(tmp_path: Path, counts: Any, crowd: int) -> None:
    from pycocotools import mask as coco_masks

    from detkit.data.masks import bitmap, decoded_counts

    expected = from_columns(610, 20)
    compressed = coco_masks.encode(np.asfortranarray(expected.astype(np.uint8)))["counts"].decode()
    counts = compressed if isinstance(counts, str) else counts
    assert decoded_counts(compressed) == [610, 20, 4170]
    segmentation = {"size": [60, 80], "counts": counts}
    dataset = load_dataset(
        coco(tmp_path, [GOOD, GOOD | {"id": 2, "iscrowd": crowd, "bbox": [1, 1, 5, 5], "segmentation": segmentation}]), "train"
    )
    assert found(dataset) == [] and dataset.images[0].crowd.tolist() == [False, bool(crowd)]
    kept = json.loads(dataset.images[0].masks[1])
    np.testing.assert_array_equal(bitmap(kept, 60, 80), expected)


def from_columns(start: int, length: int) -> np.ndarray:
    """A mask of 60 x 80 px whose pixels `start` to `start + length` in column order are set."""
    flat = np.zeros(60 * 80, bool)
    flat[start : start + length] = True
    return flat.reshape(80, 60).T


def test_all_objects_crowd(tmp_path: Path) -> None:
    settings = coco(tmp_path, [GOOD | {"iscrowd": 1}])
    dataset = load_dataset(settings, "train")
    assert found(dataset) == [("all crowd", f"{tmp_path}/train.json")]
    assert refused(dataset, settings.model_copy(update={"on_bad": "skip"})), "nothing is left to train on"


def test_no_object_at_all_is_refused_whatever_on_bad(tmp_path: Path) -> None:
    settings = coco(tmp_path, [])
    dataset = load_dataset(settings, "train")
    assert found(dataset) == [("no objects", f"{tmp_path}/train.json")]
    assert refused(dataset, settings.model_copy(update={"on_bad": "skip"}))


def test_string_ids_are_kept_and_numbers_in_strings_are_read(tmp_path: Path) -> None:
    images = [{"id": "c33c", "file_name": "a.png", "width": 80, "height": 60}]
    picture(tmp_path / "train/a.png")
    row = GOOD | {"id": "x-1", "image_id": "c33c", "bbox": ["10", "10", "20.5", "20"], "area": None}
    dataset = load_dataset(coco(tmp_path, [row], images), "train")
    assert found(dataset) == [] and dataset.images[0].image_id == "c33c"
    np.testing.assert_array_equal(dataset.images[0].boxes_xyxy, [[10, 10, 30.5, 30]])


def test_duplicate_annotation_ids_are_numbered_anew(tmp_path: Path) -> None:
    rows = [GOOD, GOOD | {"bbox": [1, 1, 5, 5]}, GOOD | {"bbox": [2, 1, 5, 5]}]
    dataset = load_dataset(coco(tmp_path, rows), "train")
    assert [kind for kind, _ in found(dataset)] == ["duplicate annotation id"] and len(dataset.images[0].boxes_xyxy) == 3
    assert "2 annotations repeat the ids 1" in dataset.findings[0].what


IMAGES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "missing picture": (lambda path: None, {}),
    "unreadable picture": (lambda path: path.write_bytes(b"<html>not found</html>"), {}),
    "wrong size": (lambda path: picture(path, (60, 80)), {}),
    "outside the root": (lambda path: picture(path), {"file_name": "../../b.png"}),
    "duplicate picture": (lambda path: picture(path), {"id": 1}),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_faults_of_pictures_leave_them_out(tmp_path: Path, kind: str) -> None:
    make, change = IMAGES[kind]
    picture(tmp_path / "train/a.png")
    make(tmp_path / "train/b.png")
    size = {"width": 80, "height": 60}
    images = [{"id": 1, "file_name": "a.png"} | size, {"id": 2, "file_name": "b.png"} | size | change]
    settings = coco(tmp_path, [GOOD], images)
    dataset = load_dataset(settings, "train")
    assert [f.kind for f in dataset.findings] == [kind] and [i.path.name for i in dataset.images] == ["a.png"]
    assert ("b.png" in dataset.findings[0].place) or ("images[1]" in dataset.findings[0].place)
    assert refused(dataset, settings) and not refused(dataset, settings.model_copy(update={"on_bad": "skip"}))


@pytest.mark.parametrize("content", ["empty", "half", "zip bomb"])
def test_damaged_files_are_unreadable(tmp_path: Path, content: str) -> None:
    path = picture(tmp_path / "train/b.jpg", (200, 160))
    whole = path.read_bytes()
    if content == "zip bomb":
        buffer = io.BytesIO()
        Image.new("1", (20000, 20000)).save(buffer, "PNG")
        whole = buffer.getvalue()
    path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "zip bomb": whole}[content])
    picture(tmp_path / "train/a.png")
    images = [{"id": n, "file_name": name} for n, name in ((1, "a.png"), (2, "b.jpg"))]
    dataset = load_dataset(coco(tmp_path, [GOOD], images), "train")
    kind = "picture too large" if content == "zip bomb" else "unreadable picture"
    assert found(dataset)[0] == (kind, str(path)) and len(dataset.images) == 1


def test_swapped_sizes_say_so(tmp_path: Path) -> None:
    picture(tmp_path / "train/a.png")
    picture(tmp_path / "train/b.png")
    images = [{"id": 1, "file_name": "a.png", "width": 80, "height": 60}, {"id": 2, "file_name": "b.png", "width": 60, "height": 80}]
    dataset = load_dataset(coco(tmp_path, [GOOD], images), "train")
    assert "width and height are swapped" in dataset.findings[0].what


@pytest.mark.parametrize("claimed", [(60, 80), (80, 60), None])
def test_exif_turn_goes_by_the_size_in_the_labels(tmp_path: Path, claimed: tuple[int, int] | None) -> None:
    """The file holds 80x60 px and says: turn by a quarter, which gives 60x80 px upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = picture(tmp_path / "train/a.jpg", (80, 60), exif=exif)
    record: dict[str, Any] = {"id": 1, "file_name": "a.jpg"}
    images = [record | ({"width": claimed[0], "height": claimed[1]} if claimed else {})]
    dataset = load_dataset(coco(tmp_path, [GOOD], images), "train")
    image = dataset.images[0]
    assert image.upright == (claimed != (80, 60))
    assert found(dataset) == ([] if image.upright else [("labelled before EXIF turn", str(path))])
    assert read_image(image.path, upright=image.upright).shape[:2] == (image.height, image.width)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("CMYK", "converted colours"),
        ("RGBA", "transparent"),
        ("P", "converted colours"),
        ("LA", "transparent"),
        ("1", "converted colours"),
        ("L", "converted colours"),
    ],
)
def test_other_colours_are_converted_and_named(tmp_path: Path, mode: str, kind: str) -> None:
    name = "a.jpg" if mode == "CMYK" else "a.png"
    path = tmp_path / "train" / name
    path.parent.mkdir()
    Image.new("RGB", (80, 60), (250, 10, 10)).convert(mode).save(path)
    dataset = load_dataset(coco(tmp_path, [GOOD], [{"id": 1, "file_name": name}]), "train")
    assert found(dataset) == [(kind, str(path))] and read_image(path).shape == (60, 80, 3)


def test_transparent_pixels_show_white(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[:, :2, 3] = 255
    Image.fromarray(pixels, "RGBA").save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png")[0], [[0, 0, 0]] * 2 + [[255, 255, 255]] * 2)


def test_wrong_suffix_is_read_by_content(tmp_path: Path) -> None:
    path = tmp_path / "train/a.jpg"
    path.parent.mkdir()
    Image.new("RGB", (80, 60)).save(path, "PNG")
    assert found(load_dataset(coco(tmp_path, [GOOD], [{"id": 1, "file_name": "a.jpg"}]), "train")) == [("wrong suffix", str(path))]


@pytest.mark.parametrize("name", ["지단.png", "é/ü b.png", "a#b%20c.png", "a,b.PNG", "😀.png"])
def test_file_names_of_all_kinds(tmp_path: Path, name: str) -> None:
    picture(tmp_path / "train" / name)
    dataset = load_dataset(coco(tmp_path, [GOOD], [{"id": 1, "file_name": name, "width": 80, "height": 60}]), "train")
    assert found(dataset) == [] and dataset.images[0].path == tmp_path / "train" / name


YOLO_LINES = {
    "0 0.5 0.5 0.0 0.2": ("empty box", 1),
    "0 0.5 0.5 0.2": ("unread line", 1),
    "0 0.5 0.5 0.2 0.2 0.9": ("unread line", 1),
    "0,0.5,0.5,0.2,0.2": ("unread line", 1),
    "0 0,548 0,5 0,2 0,2": ("unread line", 1),
    "0 a b c d": ("unread line", 1),
    "cat 0.5 0.5 0.2 0.2": ("unknown class", 1),
    "-1 0.5 0.5 0.2 0.2": ("unknown class", 1),
    "1.5 0.5 0.5 0.2 0.2": ("unknown class", 1),
    "7 0.5 0.5 0.2 0.2": ("unknown class", 1),
    "0 0.5 0.5 nan 0.2": ("box not finite", 1),
    "0 0.1 0.1 0.9 0.1 0.5 0.9 0.2": ("odd polygon", 1),
    "1 0.25 0.5 0.25 0.5": ("duplicate object", 1),
    "0 0.0 0.5 0.2 0.2": ("box partly outside", 2),
    "0 312 0.5 0.2 0.2": ("box mostly outside", 1),
}


@pytest.mark.parametrize("line", YOLO_LINES)
def test_faults_of_yolo_lines(tmp_path: Path, line: str) -> None:
    kind, num_kept = YOLO_LINES[line]
    settings = yolo(tmp_path, f"1 0.25 0.5 0.25 0.5\n{line}\n")
    dataset = load_dataset(settings, "train")
    assert found(dataset) == [(kind, f"{tmp_path}/labels/train/a.txt:2")]
    assert len(dataset.images[0].boxes_xyxy) == num_kept
    assert refused(dataset, settings) == (FAULTS[kind].severity == "error")


@pytest.mark.parametrize(
    "text",
    [
        "1 .25 .5 .25 .5",
        "1\t.25\t.5\t.25\t.5\r\n",
        "\ufeff1  .25 .5  .25 .5 \n\n",
        "1.0 0.25 0.5 0.25 0.5",
        "1 0.125 0.25 0.375 0.25 0.375 0.75 0.125 0.75",
    ],
)
def test_yolo_separators_and_forms_give_the_same_box(tmp_path: Path, text: str) -> None:
    dataset = load_dataset(yolo(tmp_path, text), "train")
    np.testing.assert_allclose(dataset.images[0].boxes_xyxy, [[10, 15, 30, 45]])
    assert found(dataset) == [] and dataset.images[0].labels.tolist() == [1]


def test_pixel_units_are_one_finding(tmp_path: Path) -> None:
    settings = yolo(tmp_path, "".join(f"0 {300 + i} 200 40 50\n" for i in range(20)))
    dataset = load_dataset(settings, "train")
    assert found(dataset)[0] == ("pixel units", f"{tmp_path}/labels/train/a.txt:1") and len(dataset.findings) == 2
    assert refused(dataset, settings.model_copy(update={"on_bad": "skip"}))


def test_labels_in_the_wrong_place_are_one_error(tmp_path: Path) -> None:
    settings = yolo(tmp_path, "0 .5 .5 .2 .2")
    (tmp_path / "labels").rename(tmp_path / "annotations")
    dataset = load_dataset(settings, "train")
    assert [kind for kind, _ in found(dataset)] == ["no labels", "no objects"]
    assert f"{tmp_path}/labels/train/a.txt" in dataset.findings[0].what


def test_empty_and_missing_label_files_are_background(tmp_path: Path) -> None:
    settings = yolo(tmp_path, "0 .5 .5 .2 .2")
    yolo(tmp_path, "", name="b")
    path = picture(tmp_path / "images/train/c.png")
    (tmp_path / "labels/train/d.txt").write_text("0 .5 .5 .2 .2")
    dataset = load_dataset(settings, "train")
    assert [len(image.boxes_xyxy) for image in dataset.images] == [1, 0, 0]
    assert set(found(dataset)) == {("picture without label", str(path)), ("label without picture", f"{tmp_path}/labels/train/d.txt")}
    assert not refused(dataset, settings)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00binary", b"0 .5 .5 .2 .2\0"])
def test_label_files_that_are_no_text_are_named(tmp_path: Path, content: bytes) -> None:
    settings = yolo(tmp_path, "0 .5 .5 .2 .2")
    yolo(tmp_path, content, name="b")
    assert found(load_dataset(settings, "train")) == [("unread label file", f"{tmp_path}/labels/train/b.txt")]


def test_images_twice_in_the_path_replaces_the_last(tmp_path: Path) -> None:
    dataset = load_dataset(yolo(tmp_path / "images/set", "0 .5 .5 .2 .2"), "train")
    assert len(dataset.images[0].boxes_xyxy) == 1


def test_linked_folders_are_followed(tmp_path: Path) -> None:
    yolo(tmp_path / "far", "0 .5 .5 .2 .2")
    (tmp_path / "near").mkdir()
    for name in ("images", "labels"):
        (tmp_path / "near" / name).symlink_to(tmp_path / "far" / name)
    dataset = load_dataset(DataSettings(root=str(tmp_path / "near"), format="yolo"), "train")
    assert len(dataset.images[0].boxes_xyxy) == 1


def test_class_count_that_differs_from_the_names(tmp_path: Path) -> None:
    settings = yolo(tmp_path, "0 .5 .5 .2 .2")
    (tmp_path / "data.yaml").write_text("train: images/train\nnc: 3\nnames: [cat, dog]\n")
    assert found(load_dataset(settings, "train")) == [("class count", str(tmp_path))]


def test_copies_between_parts_and_pictures_that_no_file_lists(tmp_path: Path) -> None:
    for part, names in (("train", "ab"), ("val", "cd")):
        for number, name in enumerate(names):
            picture(tmp_path / f"images/{name}.png", (160, 120), seed=number if name in "ac" else ord(name))
        images = [{"id": n, "file_name": f"{name}.png"} for n, name in enumerate(names)]
        (tmp_path / f"{part}.json").write_text(
            json.dumps({"images": images, "annotations": [GOOD | {"image_id": 0}], "categories": [{"id": 1, "name": "cat"}]})
        )
    near = np.asarray(Image.open(tmp_path / "images/b.png"))
    Image.fromarray(np.clip(near.astype(int) + 3, 0, 255).astype(np.uint8)).save(tmp_path / "images/d.png")
    picture(tmp_path / "images/e.png", seed=99)
    kinds = {(f.kind, Path(f.place).name) for f in examined(DataSettings(root=str(tmp_path))).findings}
    assert kinds == {("in two parts", "c.png"), ("near copy in two parts", "d.png"), ("picture not listed", "e.png")}


def test_objects_that_vanish_at_the_input_size(tmp_path: Path) -> None:
    settings = coco(tmp_path, [GOOD, GOOD | {"id": 2, "bbox": [1, 1, 2, 30]}])
    names = [f.kind for f in examined(settings.model_copy(update={"image_size_px": 64}), {"train": ("train",)}).findings]
    assert names == ["vanishes at this size"]
    assert not examined(settings.model_copy(update={"image_size_px": 96}), {"train": ("train",)}).findings
