"""COCO segmentations: polygons and run lengths, what can be wrong with them, and their bitmaps."""

import itertools
import json
import math
from typing import Any

import numpy as np

from detkit.data.labels import Labels

# Polygons with more points are not searched for crossing edges, which grows with the square.
MOST_CROSSING_POINTS = 64
# A polygon reaches this far outside its picture only by mistake, as a factor of the picture's longer side.
FAR = 4.0


def mask_faults(labels: Labels, rows: np.ndarray) -> dict[int, bytes]:
    """Masks of the objects `rows` that must be replaced, by row; b"" drops one. Faults are noted in `labels`."""
    replaced: dict[int, bytes] = {}
    for row in rows.tolist() if len(labels.mask) else []:
        content = labels.mask[row]
        if not content:
            continue
        width, height = labels.sizes_wh[int(labels.image[row])]
        try:
            given = json.loads(content)
        except (ValueError, RecursionError):
            given = None
        kept, faults = cleaned(given, height, width)
        for kind, what in faults:
            labels.found(kind, labels.place(row), what)
        if faults and kept != given:
            replaced[row] = json.dumps(kept).encode() if kept else b""
    return replaced


def cleaned(given: Any, height: int, width: int) -> tuple[Any, list[tuple[str, str]]]:
    """What can be used of a segmentation of a picture of `height` x `width` px (None for nothing), and (kind, sentence) pairs."""
    if given is None or given == []:
        return None, []
    if isinstance(given, dict):
        fault = run_length_fault(given, height, width)
        return (None, [("bad run lengths", fault)]) if fault else (given, [])
    if not isinstance(given, list):
        return None, [("odd polygon", f"segmentation is {str(given)[:40]!r}, neither polygons nor run lengths")]
    faults = []
    if all(is_number(value) for value in given):
        faults.append(("flat polygon", f"{len(given)} numbers that are not in a list of their own"))
        given = [given]
    kept = []
    for polygon in given:
        fault = polygon_fault(polygon, height, width)
        if fault:
            faults.append(fault)
        if not fault or fault[0] == "self-crossing polygon":
            kept.append(polygon)
    return kept or None, faults


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def polygon_fault(polygon: Any, height: int, width: int) -> tuple[str, str] | None:
    """Kind and sentence of the fault of a polygon x1 y1 x2 y2 ..., or None."""
    if not isinstance(polygon, list) or not all(is_number(value) for value in polygon):
        return "odd polygon", f"{str(polygon)[:40]} is not a list of numbers"
    if polygon and sum(polygon) == height * width and all(isinstance(value, int) and value >= 0 for value in polygon):
        return "run lengths as polygon", f"{len(polygon)} numbers add up to {height} x {width}, as run lengths do"
    if len(polygon) % 2:
        return "odd polygon", f"{len(polygon)} coordinates do not pair up"
    points = np.array(polygon, np.float64).reshape(-1, 2)
    if len(points) and np.abs(points).max() > FAR * max(height, width):
        return "odd polygon", f"coordinate {np.abs(points).max():g} is far outside the {width}x{height} px"
    distinct = np.unique(points, axis=0)
    if len(distinct) < 3:
        return "degenerate polygon", f"it has {len(distinct)} distinct points"
    x, y = points.T
    if abs(float(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1)))) / 2 <= 0 and not crosses(points):
        return "degenerate polygon", f"its {len(points)} points enclose no area"
    if len(points) <= MOST_CROSSING_POINTS and crosses(points):
        return "self-crossing polygon", f"edges of its {len(points)} points cross"
    return None


def crosses(points: np.ndarray) -> bool:
    """Whether two edges of a closed polygon (N, 2) that are not neighbours properly cross."""
    a, b = points, np.roll(points, -1, axis=0)
    count = len(points)

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        return np.sign((q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) - (q[..., 1] - p[..., 1]) * (r[..., 0] - p[..., 0]))

    i, j = np.triu_indices(count, 2)
    apart = (j - i) < count - 1
    i, j = i[apart], j[apart]
    one = side(a[i], b[i], a[j]) * side(a[i], b[i], b[j])
    other = side(a[j], b[j], a[i]) * side(a[j], b[j], b[i])
    return bool(((one < 0) & (other < 0)).any())


def run_length_fault(given: dict[str, Any], height: int, width: int) -> str:
    """What is wrong with run lengths {"counts": ..., "size": [h, w]}, or ""."""
    size, counts = given.get("size"), given.get("counts")
    if size != [height, width]:
        return f"size is {str(size)[:40]}, the picture has [{height}, {width}]"
    if isinstance(counts, str):
        lengths = decoded_counts(counts)
        if lengths is None:
            return "counts is not a string of run lengths"
    elif isinstance(counts, list) and all(isinstance(value, int) and value >= 0 for value in counts):
        lengths = counts
    else:
        return f"counts is {str(counts)[:40]!r}, neither a string nor a list of lengths"
    if any(length < 0 for length in lengths) or sum(lengths) != height * width:
        return f"counts add up to {sum(lengths)}, not {height} x {width} = {height * width}"
    return ""


def decoded_counts(text: str) -> list[int] | None:
    """Run lengths of COCO's compressed string (maskApi.c: groups of five bits, from the third on as differences), or None."""
    lengths: list[int] = []
    characters = iter(text)
    for first in characters:
        value = shift = 0
        for character in itertools.chain([first], characters):
            code = ord(character) - 48
            if not 0 <= code < 64 or shift > 60:
                return None
            value |= (code & 0x1F) << shift
            shift += 5
            if not code & 0x20:
                if code & 0x10:
                    value -= 1 << shift
                break
        else:
            return None
        lengths.append(value + lengths[-2] if len(lengths) > 2 else value)
    return lengths


def bitmap(segmentation: Any, height: int, width: int) -> np.ndarray:
    """The mask (H, W) of a segmentation that `cleaned` has passed, as bool; polygons are filled as pycocotools does."""
    from pycocotools import mask as coco_masks

    if isinstance(segmentation, dict):
        rle: Any = segmentation
        if isinstance(rle["counts"], list):
            rle = coco_masks.frPyObjects(rle, height, width)
    else:
        polygons: Any = [[float(v) for v in polygon] for polygon in segmentation]
        rle = coco_masks.merge(coco_masks.frPyObjects(polygons, height, width))
    return coco_masks.decode(rle).astype(bool)
