"""Large COCO files: halves read by two processes give what one process reads, whatever lies where they are cut."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detkit.core.errors import UserError
from detkit.data import coco_blocks
from detkit.data.coco import read_coco
from detkit.recipe.schema import DataSettings

PICTURES = [{"id": 5 * i + 3, "file_name": f"{i}.jpg", "width": 64, "height": 48} for i in range(40)]
COLUMNS = ("image", "category", "boxes", "crowd", "area_px", "number", "file")


def annotation(number: int, **changed: Any) -> dict[str, Any]:
    row = {
        "id": number,
        "image_id": 5 * (number % 40) + 3,
        "category_id": 1 + number % 3,
        "bbox": [number % 30, 2, 10.5, 20.25],
        "area": 150,
    }
    return row | changed


def labels_of(root: Path, annotations: list[Any], monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> Any:
    monkeypatch.setattr(coco_blocks, "SHARED_BYTES", 0 if shared else 1 << 60)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(coco_blocks, "BLOCK_BYTES", 200)
    categories = [{"id": i, "name": f"c{i}"} for i in (1, 2, 3)]
    content = {"images": PICTURES, "annotations": annotations, "categories": categories}
    (root / "train.json").write_text(json.dumps(content))
    return read_coco(root, ["train"], DataSettings(root=str(root), images="."))


HALF = 60
KINDS: dict[str, dict[int, dict[str, Any]]] = {
    "plain": {},
    "masks": {i: {"segmentation": [[1, 1, 9, 1, 9, 9]]} for i in range(0, 120, 7)},
    "masks in one half": {90: {"segmentation": {"size": [48, 64], "counts": "abc"}}},
    "orphan in the second": {100: {"image_id": 999}},
    "orphan in the first": {4: {"image_id": 999}},
    "string id in the second": {100: {"id": "x"}},
    "string picture in the second": {110: {"image_id": "5"}},
    "huge id in the second": {100: {"id": 2**70}},
    "huge crowd in the second": {100: {"iscrowd": 2**70}},
    "no box in the second": {100: {"bbox": None}},
    "record ends in strings": {i: {"note": "}, {"} for i in range(120)},
    "nested records": {i: {"attributes": [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}]} for i in range(HALF - 10, HALF + 10)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_read_what_one_reads(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [annotation(i, **KINDS[kind].get(i, {})) for i in range(120)]
    one, two = (labels_of(tmp_path, rows, monkeypatch, shared=shared) for shared in (False, True))
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    assert [one.mask[i] for i in range(len(one.mask))] == [two.mask[i] for i in range(len(two.mask))]
    assert one.findings == two.findings
    assert one.paths == two.paths
    assert len(one.image) >= 118


def test_a_process_that_dies_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco_blocks.Columns, "save", lambda self, folder: coco_blocks.os._exit(9))
    labels = labels_of(tmp_path, [annotation(i) for i in range(120)], monkeypatch, shared=True)
    assert labels.number.tolist() == list(range(120))


@pytest.mark.parametrize("section", ["images", "annotations", "categories"])
@pytest.mark.parametrize("content", [{}, "", None, {"a": 1}, 3])
def test_a_section_that_is_no_list(section: str, content: Any, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps({"images": [], "annotations": [], "categories": [], section: content}))
    with pytest.raises(UserError, match=section):
        read_coco(tmp_path, ["train"], DataSettings(root=str(tmp_path), images="."))
