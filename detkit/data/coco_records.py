"""Records of COCO instances JSON, and their columns."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from detkit.data.labels import Labels

# Ids are kept as 64-bit columns.
LARGEST_ID = 2**63
# Picture ids are looked up in a table where it has at most so many places a picture.
MOST_GAPS = 16
# Types of the object columns, None where the numbers decide. Boxes are checked in them, so what is kept was checked.
NARROW: dict[str, Any] = {
    "image": None,
    "category": None,
    "boxes": np.float32,
    "crowd": bool,
    "area_px": np.float32,
    "number": None,
}
Int64 = Annotated[int, msgspec.Meta(ge=-LARGEST_ID, le=LARGEST_ID - 1)]
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
    id: Int64
    image_id: int | str
    category_id: int | str
    bbox: tuple[float, float, float, float]
    area: float | None = None
    iscrowd: Int64 = 0
    segmentation: msgspec.Raw = NONE


class Masks(Sequence[bytes]):
    """COCO segmentations as JSON, one an object, all in one stretch of bytes; b"" where an object has none."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.lengths: list[np.ndarray] = []
        self.starts = np.zeros(1, np.int64)

    def extend(self, rows: list[bytes]) -> None:
        self.content += b"".join(rows)
        self.lengths.append(np.fromiter(map(len, rows), np.int32, len(rows)))

    def extend_empty(self, count: int) -> None:
        self.lengths.append(np.broadcast_to(np.int32(0), count))

    def close(self) -> None:
        """Make the rows readable; nothing is added afterwards."""
        if self.content:
            self.starts = np.concatenate([np.zeros(1, np.int64), *self.lengths]).cumsum()

    def __len__(self) -> int:
        return len(self.starts) - 1

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


def narrow(column: np.ndarray) -> np.ndarray:
    """Integers in 32 bits where they fit."""
    limits = np.iinfo(np.int32)
    fits = column.dtype == np.int64 and column.size and limits.min <= column.min() and column.max() <= limits.max
    return column.astype(np.int32) if fits else column


class Columns:
    """Blocks of object columns on their way into Labels."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[np.ndarray]] = {name: [] for name in NARROW}
        self.files: list[tuple[int, int]] = []
        self.masks = Masks()

    def add(self, file: int, rows: list[Annotation], image: np.ndarray) -> None:
        """Columns of annotations whose pictures have the indices `image`."""
        count = len(rows)
        corner_size = np.fromiter(chain.from_iterable([r.bbox for r in rows]), np.float64, 4 * count).reshape(-1, 4)
        corner_size[:, 2:] += corner_size[:, :2]
        columns = {
            "image": narrow(image),
            "category": narrow(numeric_or_objects([r.category_id for r in rows])),
            "boxes": corner_size,
            "crowd": np.fromiter([r.iscrowd for r in rows], np.int64, count) != 0,
            "area_px": np.array([r.area for r in rows], np.float64),
            "number": narrow(np.fromiter([r.id for r in rows], np.int64, count)),
        }
        for name, column in columns.items():
            kept = NARROW[name]
            self.blocks[name].append(column if kept is None else column.astype(kept, copy=False))
        self.files.append((file, count))
        masks = [r.segmentation for r in rows]
        if masks.count(NONE) == count:
            self.masks.extend_empty(count)
        else:
            self.masks.extend([b"" if mask is NONE or mask in NO_MASK else bytes(mask) for mask in masks])

    def extend(self, other: "Columns", file: int, index: "ImageIds") -> bool:
        """Append what another process has read, with ids of pictures for indices; not where one is unknown."""
        images = index.of_numbers(other.joined("image"))
        if len(images) and images.min() < 0:
            return False
        other.blocks["image"] = [images]
        for name, blocks in other.blocks.items():
            self.blocks[name] += blocks
        self.files += [(file, count) for _, count in other.files]
        self.masks.content += other.masks.content
        self.masks.lengths += other.masks.lengths
        return True

    def save(self, folder: Path) -> None:
        for name in NARROW:
            np.save(folder / f"{name}.npy", self.joined(name), allow_pickle=False)
        np.save(folder / "files.npy", np.array(self.files, np.int64).reshape(-1, 2))
        lengths = np.concatenate(self.masks.lengths) if self.masks.content else np.zeros(0, np.int32)
        np.save(folder / "lengths.npy", lengths)
        (folder / "masks").write_bytes(self.masks.content)

    @classmethod
    def load(cls, folder: Path) -> "Columns":
        """What `save` wrote, mapped: it is read when it is joined."""
        columns = cls()
        for name in NARROW:
            columns.blocks[name] = [np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)]
        columns.files = [tuple(row) for row in np.load(folder / "files.npy").tolist()]
        columns.masks.content += (folder / "masks").read_bytes()
        lengths = np.load(folder / "lengths.npy")
        if len(lengths):
            columns.masks.lengths.append(lengths)
        else:
            columns.masks.extend_empty(sum(count for _, count in columns.files))
        return columns

    def into(self, labels: Labels) -> None:
        for name in NARROW:
            setattr(labels, name, self.joined(name))
            self.blocks[name].clear()
        numbers, counts = np.array(self.files, np.int64).reshape(-1, 2).T
        one = len(set(numbers.tolist())) == 1
        labels.file = np.broadcast_to(np.int32(numbers[0]), counts.sum()) if one else np.repeat(numbers.astype(np.int32), counts)
        self.masks.close()
        labels.mask = self.masks

    def joined(self, name: str) -> np.ndarray:
        blocks = [block for block in self.blocks[name] if len(block)]
        if len(blocks) == 1 or not blocks:
            return np.array(blocks[0]) if blocks else np.zeros((0, 4) if name == "boxes" else 0, NARROW[name] or np.int64)
        return np.concatenate(blocks)


class ImageIds:
    """Finds the indices of pictures by their ids."""

    def __init__(self, ids: list[int | str], indices: Sequence[int]) -> None:
        self._index: dict[int | str, int] = {}
        self._table = self._sorted = self._order = np.zeros(0, np.int32)
        self._least = 0
        numeric, places = numeric_or_objects(ids), np.asarray(indices, np.int32)
        if numeric.dtype == object or not ids:
            self._index = dict(zip(ids, indices, strict=True))
            return
        self._least, most = int(numeric.min()), int(numeric.max())
        if most - self._least < MOST_GAPS * len(ids):
            self._table = np.full(most - self._least + 1, -1, np.int32)
            self._table[numeric - self._least] = places
            return
        order = np.argsort(numeric)
        self._sorted, self._order = numeric[order], places[order]

    def __call__(self, wanted: list[int | str]) -> np.ndarray:
        """Index (N,) int32 of each picture, -1 where there is none of that id."""
        ids = np.zeros(0, object) if self._index else numeric_or_objects(wanted)
        return self.of_numbers(ids) if ids.dtype != object else np.fromiter(map(self._by_key, wanted), np.int32, len(wanted))

    def of_numbers(self, ids: np.ndarray) -> np.ndarray:
        """The same of a column of integers."""
        if self._index:
            return np.fromiter(map(self._by_key, ids.tolist()), np.int32, len(ids))
        if len(self._table):
            inside = (ids >= self._least) & (ids < self._least + len(self._table))
            return np.where(inside, self._table[np.where(inside, ids - self._least, 0)], np.int32(-1))
        if not len(self._sorted):
            return np.full(len(ids), -1, np.int32)
        place = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        return np.where(self._sorted[place] == ids, self._order[place], np.int32(-1))

    def _by_key(self, key: int | str) -> int:
        if self._index or type(key) is not int or abs(key) >= LARGEST_ID:
            return self._index.get(key, -1)
        return int(self.of_numbers(np.array([key], np.int64))[0])
