"""Labelled pictures as memory-mapped columns that any number of processes share."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from detkit.core.files import os_path_from_bytes


@dataclass(frozen=True)
class LabelledImage:
    """A picture and its objects.

    `width`, `height` in px as the labels see it; `boxes_xyxy` (N, 4) float32 px, right and bottom exclusive, inside
    the picture; `labels` (N,) class indices; `crowd` (N,) objects that are groups, never trained on; `areas_px` (N,)
    float32 by which COCO sorts objects into small, medium and large (the mask's area where the labels give it).
    `upright` tells whether the EXIF orientation applies (`images.read_image`); `masks` are COCO segmentations as JSON,
    b"" where an object has none; `semantic` is a PNG of class ids.
    """

    path: Path
    image_id: Any
    width: int
    height: int
    boxes_xyxy: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas_px: np.ndarray
    upright: bool = True
    masks: tuple[bytes, ...] = ()
    semantic: Path | None = None


# Columns of a table: one row a picture, `starts` of strings and objects one more, one row an object.
COLUMNS = (
    "path_bytes",
    "path_starts",
    "id_numbers",
    "id_bytes",
    "id_starts",
    "sizes_wh",
    "upright",
    "semantic_bytes",
    "semantic_starts",
    "object_starts",
    "boxes",
    "labels",
    "crowd",
    "areas_px",
    "mask_bytes",
    "mask_starts",
)


class ImageTable(Sequence[LabelledImage]):
    """Read-only rows over columns named COLUMNS; `rows` picks and orders pictures (all of them where None)."""

    def __init__(self, columns: dict[str, np.ndarray], rows: np.ndarray | None = None) -> None:
        # Plain views: slicing a memmap itself costs several times as much.
        self.columns = {name: column.view(np.ndarray) for name, column in columns.items()}
        self.rows = np.arange(len(columns["sizes_wh"])) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> LabelledImage: ...
    @overload
    def __getitem__(self, index: slice) -> "ImageTable": ...
    def __getitem__(self, index: int | slice) -> "LabelledImage | ImageTable":
        if isinstance(index, slice):
            return ImageTable(self.columns, self.rows[index])
        c = self.columns
        row = int(self.rows[index])
        objects = slice(int(c["object_starts"][row]), int(c["object_starts"][row + 1]))
        semantic = string(c["semantic_bytes"], c["semantic_starts"], row)
        number = int(c["id_numbers"][row]) if len(c["id_numbers"]) else None
        return LabelledImage(
            path=os_path_from_bytes(string(c["path_bytes"], c["path_starts"], row)),
            image_id=string(c["id_bytes"], c["id_starts"], row).decode() if number is None else number,
            width=int(c["sizes_wh"][row, 0]),
            height=int(c["sizes_wh"][row, 1]),
            boxes_xyxy=np.asarray(c["boxes"][objects]),
            labels=c["labels"][objects].astype(np.int64),
            crowd=np.asarray(c["crowd"][objects]),
            areas_px=np.asarray(c["areas_px"][objects]),
            upright=bool(c["upright"][row]),
            masks=self._masks(objects),
            semantic=os_path_from_bytes(semantic) if semantic else None,
        )

    def __iter__(self) -> Iterator[LabelledImage]:
        return (self[index] for index in range(len(self)))

    def paths(self) -> list[Path]:
        """Paths of all pictures, in order."""
        c = self.columns
        return [os_path_from_bytes(string(c["path_bytes"], c["path_starts"], row)) for row in self.rows.tolist()]

    def sizes_wh(self) -> np.ndarray:
        """Width and height of all pictures, (N, 2) px."""
        return self.columns["sizes_wh"][self.rows]

    def num_objects(self) -> np.ndarray:
        """Objects of each picture, (N,)."""
        return np.diff(self.columns["object_starts"])[self.rows]

    def _masks(self, objects: slice) -> tuple[bytes, ...]:
        starts = self.columns["mask_starts"]
        if not len(starts):
            return ()
        return tuple(string(self.columns["mask_bytes"], starts, i) for i in range(objects.start, objects.stop))


def string(content: np.ndarray, starts: np.ndarray, row: int) -> bytes:
    """Row `row` of a column of strings."""
    if not len(starts):
        return b""
    return content[int(starts[row]) : int(starts[row + 1])].tobytes()


def strings(values: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """A column of strings: all bytes in one array, and where each begins; both empty where every string is."""
    rows = list(values)
    content = b"".join(rows)
    if not content:
        return np.zeros(0, np.uint8), np.zeros(0, np.int64)
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=starts[1:])
    return np.frombuffer(content, np.uint8), starts
