"""Records of COCO instances JSON, and their columns."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import msgspec
import numpy as np

from detkit.data.labels import Labels

# Ids are kept as 64-bit columns.
LARGEST_ID = 2**63
# Types of the object columns. Boxes are checked in them, so that what is kept is what was checked.
NARROW: dict[str, Any] = {
    "image": np.int32,
    "category": np.int64,
    "boxes": np.float32,
    "crowd": bool,
    "area_px": np.float32,
    "number": np.int64,
    "file": np.int32,
}
NONE = msgspec.Raw(b"")
NO_MASK = (msgspec.Raw(b""), msgspec.Raw(b"[]"), msgspec.Raw(b"null"))


class Top(msgspec.Struct):
    """Sections of the file, the large ones still as bytes."""

    images: msgspec.Raw
    annotations: msgspec.Raw
    categories: msgspec.Raw


class ImageRecord(msgspec.Struct, gc=False):
    id: int | str
    file_name: str
    width: int | None = None
    height: int | None = None


class Category(msgspec.Struct):
    id: int | str
    name: str


class Annotation(msgspec.Struct, gc=False):
    id: int
    image_id: int | str
    category_id: int | str
    bbox: tuple[float, float, float, float]
    area: float | None = None
    iscrowd: int = 0
    segmentation: msgspec.Raw = NONE


class Masks(Sequence[bytes]):
    """COCO segmentations as JSON, one an object, all in one stretch of bytes; b"" where an object has none."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.lengths: list[np.ndarray] = []
        self.starts = np.zeros(1, np.int64)

    def extend(self, rows: list[bytes]) -> None:
        self.content += b"".join(rows)
        self.lengths.append(np.fromiter(map(len, rows), np.int64, len(rows)))

    def close(self) -> None:
        """Make the rows readable; nothing is added afterwards."""
        self.starts = np.concatenate([np.zeros(1, np.int64), *self.lengths]).cumsum()

    def __len__(self) -> int:
        return len(self.starts) - 1 if self.content else 0

    def __getitem__(self, index: Any) -> Any:
        return bytes(self.content[self.starts[index] : self.starts[index + 1]])


def numeric_or_objects(keys: list[int | str]) -> np.ndarray:
    """Integers as int64, anything else as the objects that they are."""
    try:
        column = np.array(keys)
    except OverflowError:
        column = np.zeros(0)
    if column.dtype == np.int64 and len(column) == len(keys):
        return column
    objects = np.empty(len(keys), object)
    objects[:] = keys
    return objects


class Columns:
    """Blocks of object columns on their way into Labels."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[np.ndarray]] = {name: [] for name in NARROW}
        self.masks = Masks()

    def add(self, file: int, rows: list[Annotation], image: np.ndarray) -> None:
        """Columns of annotations whose pictures have the indices `image`."""
        count = len(rows)
        corner_size = np.fromiter(chain.from_iterable([r.bbox for r in rows]), np.float64, 4 * count).reshape(-1, 4)
        corner_size[:, 2:] += corner_size[:, :2]
        areas = [r.area for r in rows]
        columns = {
            "image": image,
            "category": numeric_or_objects([r.category_id for r in rows]),
            "boxes": corner_size,
            "crowd": np.fromiter([r.iscrowd for r in rows], np.int64, count) != 0,
            "area_px": np.array(areas, np.float64),
            "number": np.fromiter([r.id for r in rows], np.int64, count),
            "file": np.full(count, file),
        }
        for name, column in columns.items():
            self.blocks[name].append(column if column.dtype == object else column.astype(NARROW[name], copy=False))
        masks = [r.segmentation for r in rows]
        self.masks.extend([b"" if mask is NONE or mask in NO_MASK else bytes(mask) for mask in masks])

    def into(self, labels: Labels) -> None:
        for name, blocks in self.blocks.items():
            empty = np.zeros((0, 4) if name == "boxes" else 0, NARROW[name])
            setattr(labels, name, np.concatenate(blocks) if blocks else empty)
            blocks.clear()
        self.masks.close()
        labels.mask = self.masks


class ImageIds:
    """Finds the indices of pictures by their ids."""

    def __init__(self, ids: list[int | str], indices: Iterable[int]) -> None:
        self._index = dict(zip(ids, indices, strict=True))
        self._sorted = self._order = np.zeros(0, np.int64)
        if ids and all(type(i) is int and abs(i) < LARGEST_ID for i in ids):
            numeric = np.array(ids, np.int64)
            order = np.argsort(numeric)
            self._sorted, self._order = numeric[order], np.fromiter(self._index.values(), np.int64, len(ids))[order]

    def __call__(self, wanted: list[int | str]) -> np.ndarray:
        """Index (N,) of each picture, -1 where there is none of that id."""
        ids = numeric_or_objects(wanted) if len(self._sorted) else np.zeros(0, object)
        if len(ids) and ids.dtype == np.int64:
            place = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
            return np.where(self._sorted[place] == ids, self._order[place], -1)
        return np.fromiter(map(self._index.get, wanted, repeat(-1)), np.int64, len(wanted))
