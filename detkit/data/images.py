"""Decode pictures to RGB uint8, upright as the EXIF orientation says."""

import struct
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from detkit.core.errors import UserError
from detkit.data.content import opened

# Pillow's own modes for 16-bit grey, which convert("RGB") would clip instead of scale.
WIDE_GREY = ("I;16", "I;16B", "I;16L", "I;16N", "I")
# Modes with transparency.
ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")
# What Pillow's readers raise on damaged files, by format.
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


def read_image(path: Path, *, upright: bool = True) -> np.ndarray:
    """Pixels (H, W, 3) uint8 RGB; grey, palette, CMYK and 16-bit pictures are converted, transparent ones laid over white.

    `upright` applies the EXIF orientation. Raises UserError naming the file where it cannot be decoded whole.
    """
    try:
        with opened(path) as file, Image.open(file) as picture:
            return rgb_from_picture(ImageOps.exif_transpose(picture) if upright else picture)
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as a picture: {error}", hint="replace the file or drop it") from error


def rgb_from_picture(picture: Image.Image) -> np.ndarray:
    """RGB uint8 pixels of an opened picture."""
    if picture.mode in WIDE_GREY:
        grey = np.clip(np.asarray(picture, dtype=np.int64), 0, 65535) >> 8
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)
    if picture.mode in ALPHA or "transparency" in picture.info:
        layers = picture.convert("RGBA")
        return np.asarray(Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB"))
    return np.asarray(picture.convert("RGB"))


def oriented_size(path: Path) -> tuple[int, int]:
    """Width and height of a picture after its EXIF orientation, read from the header. Raises UserError if unreadable."""
    try:
        with opened(path) as file, Image.open(file) as picture:
            width, height = picture.size
            turned = picture.getexif().get(0x0112, 1) >= 5
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as a picture: {error}", hint="replace the file or drop it") from error
    return (height, width) if turned else (width, height)
