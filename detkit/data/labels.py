"""Labels of one part as columns: what every reader fills, before anything is checked."""

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from detkit.data.findings import Finding

# How `number` of an object is read with its file: line 12, annotation 12 or object 12.
PlaceStyle = Literal["line", "annotation", "object"]
Box = tuple[float, float, float, float]


@dataclass
class Labels:
    """Pictures and objects in the order of their files.

    `paths[i]`, `image_ids[i]` (an int or a string, as the labels have it), `sizes_wh[i]` ((0, 0) where the labels give
    none) and `semantic[i]` (a PNG of class ids, or None) belong to picture i. Objects are columns: `image` index of
    the picture, `category` a key of `categories`, `boxes` xyxy px (right and bottom exclusive), `crowd`, `area_px`
    (NaN where unknown), `mask` (empty where no object has one) a COCO segmentation as JSON bytes or b"", `file` index
    into `files` and `number` of the line, annotation or object in it. `categories` maps original ids to names, in
    label order.
    """

    style: PlaceStyle
    paths: list[str] = field(default_factory=list)
    image_ids: list[Any] = field(default_factory=list)
    sizes_wh: Any = field(default_factory=list)
    semantic: list[Path | None] = field(default_factory=list)
    image: Any = field(default_factory=list)
    category: Any = field(default_factory=list)
    boxes: Any = field(default_factory=list)
    crowd: Any = field(default_factory=list)
    area_px: Any = field(default_factory=list)
    mask: Any = field(default_factory=list)
    file: Any = field(default_factory=list)
    number: Any = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    categories: dict[Hashable, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add_file(self, path: Path) -> int:
        """Index of a label file, for `add_object`."""
        self.files.append(path)
        return len(self.files) - 1

    def add_image(self, path: Path | str, image_id: Any, *, size_wh: tuple[int, int] = (0, 0), semantic: Path | None = None) -> int:
        """Index of a new picture, for `add_object`."""
        self.paths.append(os.fspath(path))
        self.image_ids.append(image_id)
        self.sizes_wh.append(size_wh)
        self.semantic.append(semantic)
        return len(self.paths) - 1

    def add_object(
        self,
        image: int,
        category: Hashable,
        box_xyxy: Box,
        *,
        file: int,
        number: int,
        crowd: bool = False,
        area_px: float = np.nan,
        mask: bytes = b"",
    ) -> None:
        """One object; its box may be anything that `float` reads, it is checked later."""
        self.image.append(image)
        self.category.append(category)
        self.boxes.append(box_xyxy)
        self.crowd.append(crowd)
        self.area_px.append(area_px)
        self.mask.append(mask)
        self.file.append(file)
        self.number.append(number)

    def found(self, kind: str, place: str, what: str) -> None:
        """Note a fault."""
        self.findings.append(Finding(kind, place, what))

    def place(self, index: int) -> str:
        """Where object `index` stands."""
        return place(self.files[self.file[index]], self.style, int(self.number[index]))


def place(file: Path, style: PlaceStyle, number: int) -> str:
    """`labels/a.txt:12`, or `train.json: annotation 12`."""
    return f"{file}:{number}" if style == "line" else f"{file}: {style} {number}"
