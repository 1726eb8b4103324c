"""Tar shards give what the same files in folders give, are listed as WebDataset lists them, and say what is wrong with them."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from detkit.core.errors import UserError
from detkit.data.content import content_of, sha256_of
from detkit.data.dataset import Dataset, load_dataset
from detkit.data.examine import examined
from detkit.data.geometry import Geometry
from detkit.data.images import read_image
from detkit.data.training import TrainingSamples
from detkit.recipe.schema import AugmentSettings, DataSettings

SIZE_HW = (60, 80)


def picture_bytes(number: int, suffix: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (*SIZE_HW, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, suffix)
    return file.getvalue()


def write_shard(path: Path, members: list[tuple[str, bytes]]) -> Path:
    """A tar of members in the order given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def settings_of(root: Path, **changed: Any) -> DataSettings:
    return DataSettings(root=str(root), **changed)


def kinds(dataset: Dataset) -> list[tuple[str, str]]:
    return [(finding.kind, finding.place.rsplit("/", 1)[-1]) for finding in dataset.findings]


@pytest.fixture
def coco128(tmp_path: Path, shared_data: Path) -> tuple[DataSettings, DataSettings]:
    """The same 128 pictures as a YOLO folder and as shards of 50 written by WebDataset's own writer."""
    source = shared_data / "coco128"
    folder = settings_of(source, format="yolo", labels="yolo_detection/labels", images="images", train=("train2017",), on_bad="skip")
    with webdataset.ShardWriter(f"{tmp_path}/train-%06d.tar", maxcount=50, verbose=0) as writer:
        for picture in sorted((source / "images" / "train2017").glob("*.jpg")):
            text = next((source / "yolo_detection" / "labels" / "train2017").glob(f"{picture.stem}.txt"), None)
            sample: dict[str, Any] = {"__key__": picture.stem, "jpg": picture.read_bytes()}
            writer.write(sample | ({"txt": text.read_bytes()} if text else {}))
    return folder, settings_of(tmp_path, on_bad="skip")


def test_shards_hold_what_the_folder_holds(coco128: tuple[DataSettings, DataSettings]) -> None:
    folder, shards = (load_dataset(settings, "train") for settings in coco128)
    assert len(folder.images) == len(shards.images) == 128
    assert sum(len(image.boxes_xyxy) for image in shards.images) > 800
    for one, other in zip(sorted(folder.images, key=lambda i: i.path.name), shards.images, strict=True):
        assert one.path.name == other.path.name
        np.testing.assert_array_equal(one.boxes_xyxy, other.boxes_xyxy)
        np.testing.assert_array_equal(one.labels, other.labels)
        assert (one.width, one.height, one.upright) == (other.width, other.height, other.upright)
        assert content_of(other.path) == one.path.read_bytes()
    np.testing.assert_array_equal(read_image(shards.images[5].path), read_image(sorted(i.path for i in folder.images)[5]))
    assert len({image.image_id for image in shards.images}) == 128


def test_samples_are_those_of_webdataset(coco128: tuple[DataSettings, DataSettings]) -> None:
    root = Path(coco128[1].root)
    urls = [str(path) for path in sorted(root.glob("*.tar"))]
    assert len(urls) == 3
    reference = {sample["__key__"]: sample["jpg"] for sample in webdataset.WebDataset(urls, shardshuffle=False)}
    ours = {image.image_id.split("/")[1]: content_of(image.path) for image in load_dataset(coco128[1], "train").images}
    assert ours == reference


def test_training_pictures_do_not_depend_on_where_they_lie(coco128: tuple[DataSettings, DataSettings]) -> None:
    folder, shards = (load_dataset(settings, "train") for settings in coco128)
    order = {image.path.name: index for index, image in enumerate(folder.images)}
    made = [
        TrainingSamples(dataset, Geometry(160, 114), AugmentSettings(mosaic=0.0), seed=3, cache_mb=0) for dataset in (folder, shards)
    ]
    same = [index for index, image in enumerate(shards.images) if order[image.path.name] == index]
    assert len(same) > 100
    for index in same[:10]:
        for one, other in zip(*(samples.sample(2, index, closed=False) for samples in made), strict=True):
            np.testing.assert_array_equal(one, other)


def test_annotations_of_coco_by_number_and_by_name(tmp_path: Path) -> None:
    rows = [{"bbox": [10, 20, 30, 20], "category_id": 3, "area": 7, "iscrowd": 0}, {"bbox": [0, 0, 5, 5], "category_id": 90}]
    polygon = [[1, 1, 9, 1, 9, 9]]
    content = {"width": 80, "height": 60, "annotations": [*rows, {"bbox": [1, 1, 8, 8], "category_id": 3, "segmentation": polygon}]}
    write_shard(tmp_path / "train.tar", [("a.jpg", picture_bytes(1)), ("a.json", json.dumps(content).encode())])
    (tmp_path / "data.yaml").write_text("names: {3: car, 17: cat, 90: brush}\n")
    dataset = load_dataset(settings_of(tmp_path), "train")
    assert dataset.classes == ("car", "cat", "brush")
    assert dataset.category_ids == (3, 17, 90)
    image = dataset.images[0]
    np.testing.assert_array_equal(image.boxes_xyxy, [[10, 20, 40, 40], [0, 0, 5, 5], [1, 1, 9, 9]])
    assert image.labels.tolist() == [0, 2, 0]
    assert image.areas_px.tolist() == [7, 25, 64]
    assert json.loads(image.masks[2]) == polygon

    named = [{"bbox": [1, 2, 3, 4], "category": "dog"}]
    write_shard(
        tmp_path / "n" / "val.tar", [("x.b.json", b"[]"), ("x.json", json.dumps(named).encode()), ("x.png", picture_bytes(2, "PNG"))]
    )
    dataset = load_dataset(settings_of(tmp_path / "n", val=("val",)), "val")
    assert dataset.classes == ("dog",)
    np.testing.assert_array_equal(dataset.images[0].boxes_xyxy, [[1, 2, 4, 6]])


def test_labels_of_voc_and_of_labelme(tmp_path: Path) -> None:
    xml = "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object>"
    write_shard(tmp_path / "train" / "0.tar", [("a.xml", f"{xml}</annotation>".encode()), ("a.jpg", picture_bytes(1))])
    dataset = load_dataset(settings_of(tmp_path), "train")
    np.testing.assert_array_equal(dataset.images[0].boxes_xyxy, [[0, 1, 30, 40]])
    shape = {"label": "cat", "shape_type": "rectangle", "points": [[1, 2], [30, 40]]}
    content = {"imagePath": "elsewhere.png", "shapes": [shape]}
    write_shard(tmp_path / "val_0.tar", [("b.jpg", picture_bytes(1)), ("b.json", json.dumps(content).encode())])
    dataset = load_dataset(settings_of(tmp_path), "val")
    np.testing.assert_array_equal(dataset.images[0].boxes_xyxy, [[1, 2, 30, 40]])
    assert dataset.images[0].image_id == "val_0/b"


def test_every_fault_of_a_shard_is_named(tmp_path: Path) -> None:
    jpeg, label = picture_bytes(1), b"0 .5 .5 .2 .2\n"
    members = [("a.jpg", jpeg), ("a.txt", label), ("b.jpg", jpeg), ("c.txt", label), ("a.jpg", picture_bytes(2)), ("notes", b"x")]
    members += [
        ("d.jpg", jpeg[:200]),
        ("d.txt", label),
        ("../../etc/e.jpg", jpeg),
        ("../../etc/e.txt", b"0 2 3\n"),
        (".hidden.jpg", jpeg),
    ]
    write_shard(tmp_path / "train-0.tar", members)
    dataset = load_dataset(settings_of(tmp_path, on_bad="skip"), "train")
    found = kinds(dataset)
    assert ("picture without label", "b.jpg") in found
    assert ("label without picture", "c.txt") in found
    assert ("duplicate picture", "train-0.tar: a.jpg") in found
    assert ("unreadable picture", "d.jpg") in found
    assert ("unread line", "e.txt:1") in found
    assert [image.path.name for image in dataset.images] == ["a.jpg", "b.jpg", "e.jpg"]
    assert content_of(dataset.images[0].path) == jpeg


def test_a_cut_and_a_compressed_shard(tmp_path: Path) -> None:
    whole = write_shard(
        tmp_path / "train-0.tar",
        [(f"{n}.{e}", picture_bytes(n) if e == "jpg" else b"0 .5 .5 .2 .2") for n in range(4) for e in ("jpg", "txt")],
    )
    content = whole.read_bytes()
    whole.write_bytes(content[: len(content) // 2])
    packed = tmp_path / "train-1.tar"
    packed.write_bytes(gzip.compress(content))
    dataset = load_dataset(settings_of(tmp_path, on_bad="skip"), "train")
    assert ("unread shard", "train-0.tar") in kinds(dataset)
    assert ("unread shard", "train-1.tar") in kinds(dataset)
    assert 0 < len(dataset.images) < 4
    joined = tmp_path / "val.tar"
    joined.write_bytes(content + bytes(1 << 20) + content)
    dataset = load_dataset(settings_of(tmp_path, on_bad="skip", val=("val",)), "val")
    assert ("unread shard", "val.tar") in kinds(dataset)
    assert "after its end mark" in dataset.findings[0].what


def test_a_changed_shard_makes_a_new_index(tmp_path: Path) -> None:
    members = [("a.jpg", picture_bytes(1)), ("a.txt", b"0 .5 .5 .2 .2\n")]
    shard = write_shard(tmp_path / "train.tar", members)
    assert len(load_dataset(settings_of(tmp_path), "train").images) == 1
    write_shard(shard, [*members, ("b.jpg", picture_bytes(2)), ("b.txt", b"0 .5 .5 .2 .2\n")])
    assert len(load_dataset(settings_of(tmp_path), "train").images) == 2
    # The same length and other labels: the time of change tells.
    write_shard(shard, [("a.jpg", picture_bytes(1)), ("a.txt", b"0 .5 .5 .4 .4\n")])
    os.utime(shard, ns=(1, 10**18))
    assert load_dataset(settings_of(tmp_path), "train").images[0].boxes_xyxy[0, 2] == pytest.approx(80 * 0.7)


def test_a_shard_cut_after_it_was_listed(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "train.tar", [("a.jpg", picture_bytes(1)), ("a.txt", b"0 .5 .5 .2 .2")])
    path = load_dataset(settings_of(tmp_path, on_bad="skip", verify="off"), "train").images[0].path
    shard.write_bytes(shard.read_bytes()[:700])
    with pytest.raises(UserError, match=r"a\.jpg cannot be read as a picture: its shard has 188 of its"):
        read_image(path)


def test_copies_in_two_shards_are_found(tmp_path: Path) -> None:
    label = b"0 .5 .5 .2 .2\n"
    write_shard(tmp_path / "train-0.tar", [("a.jpg", picture_bytes(1)), ("a.txt", label)])
    write_shard(tmp_path / "val-0.tar", [("z.jpg", picture_bytes(1)), ("z.txt", label), ("y.jpg", picture_bytes(2)), ("y.txt", label)])
    data = examined(settings_of(tmp_path))
    assert data.settings.format == "shards"
    assert set(data.parts) == {"train", "val"}
    twice = [finding for finding in data.findings if finding.kind == "in two parts"]
    assert len(twice) == 1
    assert twice[0].place.endswith("/z.jpg")


@pytest.mark.parametrize("part", ["nothing", "", "/etc", "../x", "*.tgz"])
def test_a_part_without_shards_is_refused(tmp_path: Path, part: str) -> None:
    write_shard(tmp_path / "train-0.tar", [("a.jpg", picture_bytes(1))])
    with pytest.raises(UserError, match="no shards") as caught:
        load_dataset(settings_of(tmp_path, format="shards", train=(part,)), "train")
    assert "train-0.tar" in (caught.value.hint or "")


def test_two_kinds_of_labels_need_a_choice(tmp_path: Path) -> None:
    members = [("a.jpg", picture_bytes(1)), ("a.txt", b"a caption"), ("a.json", b'[{"bbox": [1, 2, 3, 4], "category": "cat"}]')]
    write_shard(tmp_path / "train-0.tar", members)
    with pytest.raises(UserError, match="json and txt"):
        load_dataset(settings_of(tmp_path), "train")
    assert load_dataset(settings_of(tmp_path, labels="json"), "train").classes == ("cat",)
    with pytest.raises(UserError, match=r"data\.labels is 'csv'"):
        load_dataset(settings_of(tmp_path, labels="csv"), "train")


def test_a_member_is_hashed_alone(tmp_path: Path) -> None:
    from hashlib import sha256

    write_shard(tmp_path / "train.tar", [("a.txt", b""), ("a.jpg", picture_bytes(7))])
    path = load_dataset(settings_of(tmp_path, on_bad="skip"), "train").images[0].path
    assert sha256_of(path) == sha256(picture_bytes(7)).hexdigest()


def test_an_archive_beside_what_was_unpacked_from_it_is_no_shard(tmp_path: Path) -> None:
    members = [("a.jpg", picture_bytes(1)), ("a.json", b'{"imagePath": "a.jpg", "shapes": []}')]
    write_shard(tmp_path / "download.tar", members)
    for name, content in members:
        (tmp_path / name).write_bytes(content)
    assert examined(settings_of(tmp_path)).settings.format == "labelme"
