"""Drawn scenes: pictures with exact labels that need no download, for the demo and the tests."""

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from detkit.recipe.schema import DataSettings, SceneSettings

SHAPES = ("disc", "cross", "triangle", "ring")
OVERSAMPLING = 3
MAX_OVERLAP = 0.25
SIZE_RANGE = (0.2, 0.5)
CROSS_INNER_RADIUS = 0.45
# Raised whenever the same settings draw other pictures or boxes.
VERSION = 4


def scene_settings(settings: DataSettings) -> DataSettings:
    """Settings that read the drawn scenes as COCO; draws them first if they are not there yet.

    They lie below data.root, or in the user's cache folder, in a folder named by what determines their content.
    """
    key = hashlib.sha256(f"{VERSION} {settings.scenes.model_dump_json()}".encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "detkit"
    folder = (Path(settings.root).expanduser() if settings.root else cache) / f"scenes-{key}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".scenes-", dir=folder.parent) as staging:
            drawing = Path(staging) / "scenes"
            write_scenes(drawing, settings.scenes)
            try:
                drawing.rename(folder)
            except OSError:
                # Another process may have drawn the same scenes first.
                if not folder.is_dir():
                    raise
    return settings.model_copy(update={"root": str(folder), "format": "coco", "train": ("train",), "val": ("val",), "images": ""})


def write_scenes(folder: Path, settings: SceneSettings) -> None:
    """Write train/, val/ and annotations/{train,val}.json; the two parts come from different random streams."""
    (folder / "annotations").mkdir(parents=True)
    for stream, (part, count) in enumerate((("train", settings.num_train), ("val", settings.num_val))):
        (folder / part).mkdir()
        content: dict[str, Any] = {
            "images": [],
            "annotations": [],
            "categories": [{"id": i + 1, "name": name} for i, name in enumerate(SHAPES)],
        }
        for index in range(count):
            pixels, boxes, labels = drawn_scene(settings, np.random.default_rng((settings.seed, stream, index)))
            name = f"{index:05d}.png"
            Image.fromarray(pixels).save(folder / part / name)
            height, width = pixels.shape[:2]
            content["images"].append({"id": index + 1, "file_name": name, "width": width, "height": height})
            for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels, strict=True):
                content["annotations"].append(
                    {
                        "id": len(content["annotations"]) + 1,
                        "image_id": index + 1,
                        "category_id": label + 1,
                        "bbox": [x1, y1, x2 - x1, y2 - y1],
                        "area": (x2 - x1) * (y2 - y1),
                        "iscrowd": 0,
                    }
                )
        (folder / "annotations" / f"{part}.json").write_text(json.dumps(content))


def drawn_scene(settings: SceneSettings, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Pixels (H, W, 3) uint8, boxes (N, 4) xyxy px around what can be seen, labels; later objects cover earlier ones."""
    height, width = settings.picture_hw
    background = textured(height, width, rng)
    canvas = Image.fromarray(background).resize((width * OVERSAMPLING, height * OVERSAMPLING))
    # Which object each drawn pixel shows, from 1; 0 is background.
    shown = Image.new("L", canvas.size)
    draw, mark = ImageDraw.Draw(canvas), ImageDraw.Draw(shown)
    outer: list[list[float]] = []
    labels: list[int] = []
    wanted = int(rng.integers(1, settings.max_objects + 1))
    for _ in range(wanted * 6):
        if len(outer) == wanted:
            break
        size = rng.uniform(*SIZE_RANGE) * min(height, width)
        label = int(rng.integers(len(SHAPES)))
        centre = rng.uniform((size / 2, size / 2), (width - size / 2, height - size / 2))
        outline = shape_outline(SHAPES[label], centre, size, rng)
        box = [*outline.min(0), *outline.max(0)]
        if all(covered(box, other) < MAX_OVERLAP for other in outer):
            draw_shape(draw, SHAPES[label], outline, contrasting(background, centre, rng))
            outer.append(box)
            draw_shape(mark, SHAPES[label], outline, len(outer))
            labels.append(label)
    extents = [visible_box(shown, number) for number in range(1, len(outer) + 1)]
    seen = [(extent, label) for extent, label in zip(extents, labels, strict=True) if extent is not None]
    pixels = np.asarray(canvas.resize((width, height), Image.Resampling.BOX), np.int16)
    noisy = np.clip(pixels + rng.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8)
    boxes = np.asarray([extent for extent, _ in seen], np.float64).reshape(-1, 4)
    return noisy, boxes, [label for _, label in seen]


def visible_box(shown: Image.Image, number: int) -> list[float] | None:
    """Tight box, px of the final picture, around the pixels that show object `number`; None where it is hidden."""
    extent = shown.point([255 if value == number else 0 for value in range(256)]).getbbox()
    return None if extent is None else [side / OVERSAMPLING for side in extent]


def textured(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """A smooth random background with a little grain, (H, W, 3) uint8."""
    coarse = rng.uniform(40, 215, (int(rng.integers(2, 6)), int(rng.integers(2, 6)), 3)).astype(np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, rng.uniform(2, 10), (height, width, 1))
    return np.clip(np.asarray(smooth, np.float64) + grain, 0, 255).astype(np.uint8)


def shape_outline(shape: str, centre: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    """Points (P, 2) on the outline, px; stretched and turned at random."""
    corners = {"disc": 64, "ring": 64, "cross": 12, "triangle": 3}[shape]
    angle = np.arange(corners) * 2 * math.pi / corners + rng.uniform(0, 2 * math.pi)
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * size / 2
    if shape == "cross":
        # Every third point is the inner corner between two arms.
        points[::3] *= CROSS_INNER_RADIUS
    return centre + points * rng.uniform(0.7, 1.0, 2)


def draw_shape(draw: ImageDraw.ImageDraw, shape: str, outline: np.ndarray, colour: tuple[int, ...] | int) -> None:
    """Fill an outline, or stroke it for a ring, at the canvas' higher resolution."""
    points = [(float(x), float(y)) for x, y in outline * OVERSAMPLING]
    if shape == "ring":
        extent = float(np.ptp(outline, axis=0).min())
        draw.line([*points, points[0]], fill=colour, width=max(2, round(extent * OVERSAMPLING * 0.12)), joint="curve")
    else:
        draw.polygon(points, fill=colour)


def contrasting(background: np.ndarray, centre: np.ndarray, rng: np.random.Generator) -> tuple[int, ...]:
    """A colour that differs from the background at the object's centre by a visible amount."""
    behind = background[int(centre[1]), int(centre[0])].astype(int)
    for _ in range(50):
        colour = rng.integers(0, 256, 3)
        if np.abs(colour - behind).max() >= 80:
            break
    return tuple(int(c) for c in colour)


def covered(box: list[float], other: list[float]) -> float:
    """Overlap as a fraction of the smaller box."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)]
    return width * height / min(areas)
