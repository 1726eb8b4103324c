"""Decode a training picture no larger than its zoom needs: JPEG files scale down inside the decoder, others after it."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from detkit.data.content import content_of
from detkit.data.images import read_image

ORIENTATION_TAG = 0x0112
# The scales that libjpeg-turbo has vector code for.
SHRINKS = (8, 4, 2)
RGB_FROM = ("Gray", "YCbCr", "RGB")
# Per EXIF orientation: transposed first, then mirrored left-right, then top-bottom.
TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}


@dataclass(frozen=True)
class Decoded:
    """`pixels` (H, W, 3) uint8 RGB of a whole picture, upright, perhaps smaller than the file.

    Decoded px = original px * `scale_xy` + `origin_xy`; the origin is below one px and not 0 only where a mirrored
    picture's last pixels were cut by the scale.
    """

    pixels: np.ndarray
    scale_xy: tuple[float, float] = (1.0, 1.0)
    origin_xy: tuple[float, float] = (0.0, 0.0)


def read_at_least(path: Path, long_side_px: float, *, upright: bool = True) -> Decoded:
    """The picture at 1, 1/2, 1/4 or 1/8 of its size, the smallest whose long side is at least `long_side_px`.

    At full size the pixels are those of `read_image`, but for the rounding of a faster transform in JPEG files.
    `upright` turns it as its EXIF orientation says. Raises UserError naming the file where it cannot be decoded whole.
    """
    try:
        data = content_of(path)
    except (OSError, EOFError):
        data = b""
    if data[:2] == b"\xff\xd8":
        try:
            return jpeg_at_least(data, long_side_px, upright=upright)
        except ValueError:
            # CMYK or damaged: what Pillow makes of it is what evaluation sees.
            pass
    pixels = read_image(path, upright=upright)
    shrink = shrink_to(pixels.shape[:2], long_side_px)
    if shrink == 1:
        return Decoded(pixels)
    height, width = (-(-side // shrink) for side in pixels.shape[:2])
    scale_xy = (width / pixels.shape[1], height / pixels.shape[0])
    return Decoded(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), scale_xy)


def jpeg_at_least(data: bytes, long_side_px: float, *, upright: bool) -> Decoded:
    """`read_at_least` of the bytes of a JPEG file. Raises ValueError for CMYK and for damaged files."""
    header = simplejpeg.decode_jpeg_header(data)
    file_height, file_width, colours = int(header[0]), int(header[1]), header[2]
    if colours not in RGB_FROM:
        raise ValueError(f"colour space {colours}")
    shrink = shrink_to((file_height, file_width), long_side_px)
    pixels = simplejpeg.decode_jpeg(
        data, "RGB", fastdct=True, fastupsample=shrink > 1, min_height=-(-file_height // shrink), min_width=-(-file_width // shrink)
    )
    height, width = pixels.shape[:2]
    scale = 1 / shrink
    transposed, mirrored_x, mirrored_y = TURNS[jpeg_orientation(data) if upright else 1]
    # The decoder rounds sizes up; what it adds lies right and below, until the picture is turned.
    excess_x, excess_y = width - file_width * scale, height - file_height * scale
    if transposed:
        pixels, excess_x, excess_y = pixels.transpose(1, 0, 2), excess_y, excess_x
    pixels = pixels[:: -1 if mirrored_y else 1, :: -1 if mirrored_x else 1]
    origin_xy = (excess_x if mirrored_x else 0.0, excess_y if mirrored_y else 0.0)
    return Decoded(np.ascontiguousarray(pixels), (scale, scale), origin_xy)


def shrink_to(hw: tuple[int, ...], long_side_px: float) -> int:
    """The largest of 8, 4, 2 and 1 that leaves the long side of `hw` at least `long_side_px`."""
    return next((shrink for shrink in SHRINKS if max(hw) >= long_side_px * shrink), 1)


def jpeg_orientation(data: bytes) -> int:
    """EXIF orientation, 1 to 8, as Pillow reads it from EXIF or XMP; 1 where a file has none or a wrong one."""
    end = start_of_scan(data)
    if data.find(b"Exif\0\0", 0, end) < 0 and data.find(b"tiff:Orientation", 0, end) < 0:
        return 1
    with Image.open(BytesIO(data)) as picture:
        orientation = picture.getexif().get(ORIENTATION_TAG, 1)
    return orientation if orientation in TURNS else 1


def start_of_scan(data: bytes) -> int:
    """Where the first compressed pixels of a JPEG begin, after all metadata (ITU T.81, B.1.1)."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF and data[position + 1] != 0xDA:
        # A marker may be preceded by fill bytes.
        position += 1 if data[position + 1] == 0xFF else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return position if data[position : position + 2] == b"\xff\xda" else len(data)
