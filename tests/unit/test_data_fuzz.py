"""Broken labels and pictures through every reader: a sentence or findings, never a traceback, a hang or a flood of memory."""

import json
import os
import random
import resource
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detkit.core.errors import UserError
from detkit.data.dataset import load_index, located
from detkit.data.examine import examined, report
from detkit.recipe.schema import DataSettings
from tests.conftest import REPOSITORY

MEMORY_BYTES = 3 << 30
SLOWEST_S = 20.0
COCO = {
    "images": [{"id": 1, "file_name": "a.png", "width": 80, "height": 60}, {"id": 2, "file_name": "b.jpg"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 30, 40], "segmentation": [[1, 2, 30, 2, 30, 40]], "iscrowd": 0},
        {
            "id": 2,
            "image_id": 2,
            "category_id": 1,
            "bbox": [1, 2, 3, 4],
            "segmentation": {"size": [60, 80], "counts": "ab1"},
            "iscrowd": 1,
        },
    ],
    "categories": [{"id": 1, "name": "cat"}],
}
VOC = (
    "<annotation><size><width>80</width><height>60</height></size><object><name>cat</name><bndbox><xmin>1</xmin><ymin>2</ymin>"
    "<xmax>30</xmax><ymax>40</ymax></bndbox></object></annotation>"
)
CVAT = (
    '<annotations><meta><task><labels><label><name>cat</name></label></labels></task></meta><image id="0" name="a.png" width="80" '
    'height="60"><box label="cat" xtl="1" ytl="2" xbr="30" ybr="40"/><polygon label="cat" points="1,2;3,4;5,9"/></image></annotations>'
)
LABELME = {
    "imagePath": "a.png",
    "imageWidth": 80,
    "imageHeight": 60,
    "shapes": [{"label": "cat", "shape_type": "rectangle", "points": [[1, 2], [30, 40]]}],
}
LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "'
    + "&a;" * 50
    + '"><!ENTITY c "'
    + "&b;" * 50
    + '">]><annotation>'
    + "&c;" * 50
    + "</annotation>"
)
HOSTILE = [
    b"",
    b"\0" * 100,
    b"\xff\xfe\xfd",
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b'{"images": ' + b"[" * 100_000,
    LAUGHS.encode(),
    b"<a>" * 50_000,
    b"0 " * 200_000,
    b"9" * 100_000,
    b"0 1e999 nan inf -1e999\n" * 50,
    b"../../../../etc/passwd\n",
    b'{"images": [{"id": 1, "file_name": "../../../../etc/passwd"}], "annotations": [], "categories": []}',
    b'{"images": [{"id": 1, "file_name": "' + b"x" * 5000 + b'"}], "annotations": [], "categories": []}',
    b'{"images": [{"id": 1e400, "file_name": "a.png"}], "annotations": [{"image_id": 1}], "categories": [{}]}',
    b"names: &a [*a]\n",
    b"train: [[[[]]]]\nnames: {x: {y: z}}\n",
]


def write_data(root: Path) -> dict[str, tuple[DataSettings, list[Path]]]:
    """A small data set a format: its settings and the files that are broken in it."""
    made = {}
    for name in ("coco", "voc", "yolo", "labelme", "cvat", "openimages", "masks", "shards"):
        folder = root / name
        for part in ("train", "images/train", "Annotations", "labels/train", "masks/train", "ImageSets/Main"):
            (folder / part).mkdir(parents=True)
        noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
        places = {"coco": "train", "voc": "JPEGImages", "yolo": "images/train", "masks": "images/train"}
        pictures = folder / places.get(name, ".")
        pictures.mkdir(exist_ok=True)
        Image.fromarray(noise).save(pictures / "a.png")
        Image.fromarray(noise).save(pictures / "b.jpg")
        files = {
            "coco": {"train.json": json.dumps(COCO)},
            "voc": {"Annotations/a.xml": VOC, "Annotations/b.xml": VOC, "ImageSets/Main/train.txt": "a\nb\n"},
            "yolo": {
                "labels/train/a.txt": "0 .5 .5 .2 .2\n",
                "labels/train/b.txt": "0 .1 .1 .5 .1 .5 .9\n",
                "data.yaml": "names: [cat]\n",
            },
            "labelme": {"a.json": json.dumps(LABELME)},
            "cvat": {"annotations.xml": CVAT},
            "openimages": {"train.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf\na,cat,0.1,0.5,0.1,0.5,0\n"},
            "masks": {"data.yaml": "names: [sky, road]\n"},
            "shards": {"data.yaml": "names: {1: cat, 5: dog}\n"},
        }[name]
        for path, text in files.items():
            (folder / path).write_text(text)
        targets = [folder / path for path in files] + [pictures / "a.png", pictures / "b.jpg"]
        if name == "masks":
            for stem in "ab":
                Image.fromarray(noise[..., 0] % 2).save(folder / f"masks/train/{stem}.png")
            targets.append(folder / "masks/train/a.png")
        if name == "shards":
            targets.append(write_shards(folder, pictures))
        part = "." if name in ("labelme", "cvat") else "train"
        made[name] = (DataSettings(root=str(folder), format=name, train=(part,), val=(part,)), targets)  # type: ignore[arg-type]
    return made


def write_shards(folder: Path, pictures: Path) -> Path:
    """Shards of the two pictures with COCO's and LabelMe's labels; the path of the one that is broken."""
    (folder / "a.json").write_text(json.dumps(COCO))
    (folder / "b.json").write_text(json.dumps(LABELME))
    (folder / "train").rmdir()
    for number in range(2):
        with tarfile.open(folder / f"train-{number}.tar", "w") as archive:
            for path in (pictures / "a.png", folder / "a.json", pictures / "b.jpg", folder / "b.json"):
                archive.add(path, f"{number}/{path.name}")
    return folder / "train-1.tar"


def broken(content: bytes, rng: random.Random) -> bytes:
    """The content with bytes flipped, cut, repeated or replaced, or something hostile in its place."""
    kind = rng.randrange(6)
    if kind == 0 or not content:
        return rng.choice(HOSTILE)
    start, length = rng.randrange(len(content)), rng.choice((1, 2, 8, 64))
    if kind == 1:
        return content[:start]
    if kind == 2:
        return content[:start] + content[start + length :]
    if kind == 3:
        return content[:start] + content[start : start + length] * rng.choice((2, 50)) + content[start:]
    if kind == 4:
        return content[:start] + bytes(rng.randrange(256) for _ in range(length)) + content[start + length :]
    words = (b"null", b"-1", b"1e400", b"NaN", b"{}", b"[]", b'"x"', b"true", b"9999999999999999999999", b"..", b"/", b"\xc3\x28")
    return content[:start] + rng.choice(words) + content[start + length :]


def fuzz(root: Path, seconds: float, seed: int) -> int:
    """Break files until the time is over; returns how many trials ran. Whatever is no UserError is an error."""
    rng = random.Random(seed)
    made = write_data(root)
    ends_at = time.monotonic() + seconds
    trials = 0
    while time.monotonic() < ends_at:
        settings, targets = made[rng.choice(list(made))]
        target = rng.choice(targets)
        whole = target.read_bytes()
        bad = broken(whole, rng)
        target.write_bytes(bad)
        began = time.monotonic()
        try:
            chosen, _ = located(settings)
            load_index(chosen, settings.train)
            if trials % 5 == 0:
                report(examined(settings, {"train": settings.train}))
        except UserError as error:
            assert error.what
        except BaseException:
            print(f"seed {seed}, trial {trials}, {target}, {bad[:300]!r}", file=sys.stderr)
            raise
        assert time.monotonic() - began < SLOWEST_S, f"{target} took long: {bad[:300]!r}"
        target.write_bytes(whole)
        trials += 1
    return trials


def run_fuzz(folder: Path, seconds: float, seed: int) -> None:
    """Fuzz in a process of its own with limited memory."""
    code = f"from tests.unit.test_data_fuzz import limited; limited({str(folder)!r}, {seconds}, {seed})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > seconds, "hardly any trial ran"


def limited(folder: str, seconds: float, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print(fuzz(Path(folder), seconds, seed))


@pytest.mark.slow
def test_broken_files_for_some_seconds(tmp_path: Path) -> None:
    run_fuzz(tmp_path, 2, seed=0)


@pytest.mark.slow
def test_broken_files_for_a_minute(tmp_path: Path) -> None:
    run_fuzz(tmp_path, 60, seed=int(time.time()))


@pytest.mark.slow
@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_content_in_every_label_file(tmp_path: Path, content: bytes) -> None:
    for settings, targets in write_data(tmp_path).values():
        for target in targets:
            whole = target.read_bytes()
            target.write_bytes(content)
            try:
                load_index(located(settings)[0], settings.train)
            except UserError as error:
                assert error.what
            target.write_bytes(whole)


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "loop.png", "/etc"])
def test_links_to_devices_loops_and_folders_are_missing_pictures(tmp_path: Path, target: str) -> None:
    settings, _ = write_data(tmp_path)["coco"]
    path = tmp_path / "coco/train/b.jpg"
    path.unlink()
    if target == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if target == "loop.png" else target)
    index = load_index(located(settings)[0], ("train",))
    assert len(index.table) == 1 and {f.kind for f in index.findings if f.place == str(path)} <= {
        "missing picture",
        "unreadable picture",
    }
    assert any(f.place == str(path) for f in index.findings)
