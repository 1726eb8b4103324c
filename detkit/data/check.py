"""Faults of boxes that every format can have, found on columns, and what is left for training."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from detkit.data.labels import Labels
from detkit.recipe.schema import DataSettings

# A box of which less than this share lies in its picture is more likely a wrong unit or picture than a tight edge.
MOSTLY_INSIDE = 0.5
# Category ids below this are looked up in a table.
DENSE = 65536
# Objects checked at a time: what is made on the way stays in the processor's cache.
BLOCK = 1 << 15
# Odd multipliers that spread the columns of an object over 64 bits.
SPREAD = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)


@dataclass(frozen=True)
class CheckedObjects:
    """Objects that may be used, in the order of their pictures: columns of one row an object, `rows` into Labels."""

    rows: np.ndarray
    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas_px: np.ndarray


def checked_objects(labels: Labels, settings: DataSettings, chosen: list[Hashable]) -> CheckedObjects:
    """Objects of the `chosen` categories with boxes clipped to their pictures, sorted by picture; faults go to `labels`.

    Pictures without a size (0, 0) have no usable object. With `data.on_bad: clip` a box mostly outside its picture
    is clipped, else it is left out. The boxes and areas of `labels` are used up.
    """
    count = len(labels.image)
    image = np.asarray(labels.image, np.int32).reshape(count)
    with np.errstate(over="ignore"):
        boxes = np.asarray(labels.boxes, np.float32).reshape(count, 4)
    areas = np.asarray(labels.area_px, np.float32).reshape(count)
    kept = np.ones(count, bool)
    label = label_indices(labels, chosen, kept)
    hashes = np.empty(count, np.uint64)
    sizes = np.tile(np.asarray(labels.sizes_wh, np.float32).reshape(-1, 2), 2)
    # Boxes and areas are changed where they are, a block at a time: on large sets every copy counts.
    for first in range(0, count, BLOCK):
        part = slice(first, first + BLOCK)
        given = boxes[part].copy()
        hashes[part] = hashed(image[part], label[part], given)
        np.take(sizes, image[part], 0, out=boxes[part])
        kept[part] &= boxes[part, 0] > 0
        np.minimum(boxes[part], np.maximum(given, 0), out=boxes[part])
        refuse_boxes(labels, given, boxes[part], kept=kept[part], first=first, settings=settings)
        areas[part] = usable_areas(labels, areas[part], boxes[part], kept=kept[part], first=first)
    drop_duplicates(labels, hashes, image, label, boxes=boxes, kept=kept)
    del hashes, sizes
    name_repeated_ids(labels)
    rows = in_order_of_pictures(image, kept)
    labels.boxes, labels.area_px = (), ()
    boxes, areas = np.take(boxes, rows, 0), areas[rows]
    crowd = np.asarray(labels.crowd, bool).reshape(count)[rows]
    name_empty_sets(labels, crowd)
    return CheckedObjects(rows, image[rows], boxes, label[rows], crowd, areas)


def in_order_of_pictures(image: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Rows that are `kept`, sorted by the picture's index; those of one picture stay in order.

    numpy sorts 16 bits by radix and merges 32, so this sorts twice by 16.
    """
    rows = np.flatnonzero(kept).astype(np.int32 if len(kept) < 2**31 else np.int64)
    keys = image[rows]
    rows = rows[np.argsort(keys.astype(np.uint16), kind="stable")]
    high = (image[rows] >> 16).astype(np.uint16)
    del keys
    return rows[np.argsort(high, kind="stable")] if high.any() else rows


def label_indices(labels: Labels, chosen: list[Hashable], kept: np.ndarray) -> np.ndarray:
    """Class index (M,) of each object; those of other categories are taken out of `kept` and named."""
    index = {category: number for number, category in enumerate(chosen)}
    keys: Any = labels.category
    if isinstance(keys, np.ndarray) and keys.dtype != object and len(keys) and 0 <= keys.min() <= keys.max() < DENSE:
        table = np.array([index.get(key, -1) for key in range(int(keys.max()) + 1)], np.int32)
        found = table[keys]
    elif isinstance(keys, np.ndarray) and keys.dtype != object:
        known, inverse = np.unique(keys, return_inverse=True)
        found = np.array([index.get(key, -1) for key in known.tolist()], np.int32)[inverse]
    else:
        found = np.array([index.get(key, -1) for key in keys], np.int32)
    for row in np.flatnonzero((found < 0) & kept).tolist():
        key = keys[row].item() if isinstance(keys[row], np.generic) else keys[row]
        if key in labels.categories:
            labels.found("unused class", labels.place(row), f"class {labels.categories[key]!r} is not in use")
        else:
            labels.found("unknown class", labels.place(row), f"class {key!r} is none of {shown(list(labels.categories))}")
    kept &= found >= 0
    return found


def refuse_boxes(
    labels: Labels, given: np.ndarray, boxes: np.ndarray, *, kept: np.ndarray, first: int, settings: DataSettings
) -> None:
    """Take boxes that cannot be used out of `kept`, and name those and the clipped ones; the first is object `first`."""
    with np.errstate(invalid="ignore"):
        size = given[:, 2:] - given[:, :2]
    # Comparisons with NaN are false, so a box that is not finite is never `whole`.
    whole = (size[:, 0] > 0) & (size[:, 1] > 0) & ((given == boxes).sum(1) == 4)
    rows = np.flatnonzero(kept & ~whole)
    if len(rows):
        suspects = given[rows].astype(np.float64), boxes[rows].astype(np.float64)
        kept[rows] = usable_suspects(labels, rows + first, *suspects, settings=settings)


def usable_suspects(labels: Labels, rows: np.ndarray, given: np.ndarray, boxes: np.ndarray, *, settings: DataSettings) -> np.ndarray:
    """Which of `rows`, the boxes that are not finite, empty or not wholly inside, may be used; names them."""
    finite = np.isfinite(given).all(1)
    empty = finite & (given[:, 2:] <= given[:, :2]).any(1)
    with np.errstate(invalid="ignore", over="ignore"):
        share = np.where(finite & ~empty, area(boxes) / np.maximum(area(given), np.finfo(np.float64).tiny), 0)
        overshoot = np.abs(given - boxes).max(1)
    outside = finite & ~empty & (overshoot > settings.outside_tolerance_px)
    mostly = outside & (share < MOSTLY_INSIDE)
    gone = mostly & (area(boxes) <= 0)
    for kind, mask, why in (
        ("box not finite", ~finite, "is not a box of finite numbers"),
        ("empty box", empty, "has no area"),
        ("box mostly outside", mostly, "lies mostly outside its picture"),
        ("box partly outside", outside & ~mostly, "leaves its picture"),
    ):
        for index in np.flatnonzero(mask).tolist():
            row = int(rows[index])
            labels.found(kind, labels.place(row), f"box {np.round(given[index], 2).tolist()} {why}{of_size(labels, row)}")
    # An edge that rounds to nothing within the tolerance is not worth a line.
    slivers = finite & ~empty & ~outside & (area(boxes) <= 0)
    return finite & ~empty & ~slivers & ~(gone if settings.on_bad == "clip" else mostly)


def of_size(labels: Labels, row: int) -> str:
    width, height = labels.sizes_wh[int(labels.image[row])]
    return f" of {width}x{height} px"


def area(boxes: np.ndarray) -> np.ndarray:
    """Areas (N,) of boxes xyxy, 0 where a side is negative."""
    return np.maximum(boxes[:, 2] - boxes[:, 0], 0) * np.maximum(boxes[:, 3] - boxes[:, 1], 0)


def hashed(image: np.ndarray, label: np.ndarray, given: np.ndarray) -> np.ndarray:
    """64 bits (N,) of picture, class and box."""
    halves = np.ascontiguousarray(given).view(np.uint64).reshape(len(given), 2)
    with np.errstate(over="ignore"):
        mixed = halves[:, 0] * SPREAD[0] + halves[:, 1] * SPREAD[1]
        return mixed ^ (image.astype(np.uint64) * SPREAD[2] + label.astype(np.uint64) * SPREAD[3])


def drop_duplicates(
    labels: Labels, hashes: np.ndarray, image: np.ndarray, label: np.ndarray, *, boxes: np.ndarray, kept: np.ndarray
) -> None:
    """Keep the first of objects with the same picture, class, box and mask."""
    ordered = hashes[kept]
    ordered.sort()
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    # Only rows whose hash was seen before are compared in full.
    seen: dict[tuple[Any, ...], int] = {}
    suspects = np.flatnonzero(kept & np.isin(hashes, repeated)).tolist() if len(repeated) else []
    for row in suspects:
        key = (int(image[row]), int(label[row]), boxes[row].tobytes(), labels.mask[row] if len(labels.mask) else b"")
        if key in seen:
            labels.found("duplicate object", labels.place(row), f"the same box and class as {labels.place(seen[key])}")
            kept[row] = False
        else:
            seen[key] = row


def usable_areas(labels: Labels, own: np.ndarray, boxes: np.ndarray, *, kept: np.ndarray, first: int) -> np.ndarray:
    """The labels' own areas, and the box's where there is none or a negative one; the first is object `first`."""
    negative = own < 0
    for row in np.flatnonzero(negative & kept).tolist():
        labels.found("negative area", labels.place(first + row), f"area {own[row]:g} is negative")
    return np.where(np.isfinite(own) & ~negative, own, area(boxes))


def name_repeated_ids(labels: Labels) -> None:
    """Annotation ids that a COCO file uses more than once; columns are numbered anew in any case."""
    if labels.style != "annotation":
        return
    numbers, files = np.asarray(labels.number), np.asarray(labels.file)
    if len(labels.files) == 1 and (numbers[1:] > numbers[:-1]).all():
        return
    for file in range(len(labels.files)):
        ordered = np.sort(numbers if len(labels.files) == 1 else numbers[files == file])
        repeated = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeated):
            ids = np.unique(repeated).tolist()
            what = f"{len(repeated)} annotations repeat the ids {shown(ids)}"
            labels.found("duplicate annotation id", str(labels.files[file]), what)


def name_empty_sets(labels: Labels, crowd: np.ndarray) -> None:
    """A part in which there is nothing to learn or to score."""
    if len(crowd) and crowd.all():
        labels.found("all crowd", str(labels.files[0]), f"all {len(crowd)} objects are crowds")
    elif not len(crowd) and not any(labels.semantic):
        where = labels.files[0] if labels.files else "the part"
        labels.found("no objects", str(where), f"none of its {len(labels.paths)} pictures has a usable object")


def shown(values: list[Any], most: int = 8) -> str:
    """The first of many values, for a sentence."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more
