"""One picture of many labelled samples, to look at before training."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from detkit.core.errors import UserError
from detkit.data.images import read_image
from detkit.data.table import LabelledImage

TILE_PX = 240
COLUMNS = 6
BACKGROUND = (250, 250, 248)
INK = (40, 40, 40)
COLOURS = ((214, 69, 65), (44, 119, 204), (38, 150, 90), (214, 137, 16), (136, 78, 160), (23, 150, 150))


def write_contact_sheet(path: Path, images: Sequence[LabelledImage], classes: Sequence[str], *, count: int = 24) -> int:
    """Write a PNG of up to `count` evenly spread pictures with boxes and class names; return how many it shows."""
    chosen = np.unique(np.linspace(0, len(images) - 1, min(count, len(images))).round().astype(int))
    if not len(chosen):
        raise UserError("there is no usable picture to show", hint="mend the errors above first")
    columns = min(COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    sheet = Image.new("RGB", (columns * TILE_PX, rows * TILE_PX), BACKGROUND)
    for place, index in enumerate(chosen.tolist()):
        sheet.paste(tile(images[index], classes), (place % columns * TILE_PX, place // columns * TILE_PX))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return len(chosen)


def tile(image: LabelledImage, classes: Sequence[str]) -> Image.Image:
    """A square of TILE_PX: the picture with its boxes, its name below."""
    margin = 16
    picture = Image.fromarray(read_image(image.path, upright=image.upright))
    scale = min((TILE_PX - 4) / picture.width, (TILE_PX - 4 - margin) / picture.height)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    square = Image.new("RGB", (TILE_PX, TILE_PX), BACKGROUND)
    left, top = (TILE_PX - size[0]) // 2, 2
    square.paste(picture.resize(size), (left, top))
    draw = ImageDraw.Draw(square)
    names = list(map(str, classes))
    for box, label, crowd in zip(image.boxes_xyxy.tolist(), image.labels.tolist(), image.crowd.tolist(), strict=True):
        x1, y1, x2, y2 = (left + box[0] * scale, top + box[1] * scale, left + box[2] * scale, top + box[3] * scale)
        colour = COLOURS[label % len(COLOURS)]
        draw.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=colour, width=1 if crowd else 2)
        text = f"{names[label]} (crowd)" if crowd else names[label]
        where = (min(x1 + 2, TILE_PX - 6 * len(text)), max(top, y1 - 11))
        draw.rectangle(draw.textbbox(where, text), fill=BACKGROUND)
        draw.text(where, text, fill=colour)
    draw.text((4, top + size[1] + 1), image.path.name[:38], fill=INK)
    return square
