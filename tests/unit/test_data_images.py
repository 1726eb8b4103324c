"""Any picture a camera or a tool writes becomes the same upright RGB uint8 pixels, or an error that names the file."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from detkit.core.errors import UserError
from detkit.data.images import oriented_size, read_image

ORIENTATION_TAG = 0x0112


def upright() -> np.ndarray:
    """A picture whose four corners differ, so that every turn and mirror shows."""
    pixels = np.full((16, 24, 3), 90, np.uint8)
    pixels[:8, :12], pixels[:8, 12:], pixels[8:, :12] = (220, 30, 30), (30, 220, 30), (30, 30, 220)
    return pixels


def stored_as(pixels: np.ndarray, orientation: int) -> Image.Image:
    """The picture as a camera stores it so that `orientation` turns it upright."""
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    picture = Image.fromarray(pixels)
    return picture if undo is None else picture.transpose(undo)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_comes_out_upright(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    path = tmp_path / "turned.png"
    stored_as(upright(), orientation).save(path, exif=exif)
    np.testing.assert_array_equal(read_image(path), upright())
    assert oriented_size(path) == (24, 16)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("L", "png"), ("1", "png"), ("P", "png"), ("RGBA", "png"), ("LA", "png"), ("L", "jpg"), ("CMYK", "jpg"), ("CMYK", "tif")],
)
def test_modes_become_rgb(tmp_path: Path, mode: str, suffix: str) -> None:
    picture = Image.fromarray(upright()).convert(mode)
    path = tmp_path / f"picture.{suffix}"
    picture.save(path, **({"quality": 95} if suffix == "jpg" else {}))
    pixels = read_image(path)
    assert pixels.shape == (16, 24, 3) and pixels.dtype == np.uint8
    expected = np.asarray(picture.convert("RGB"), np.int16)
    # Block borders of the corner pattern ring a little in JPEG.
    assert np.abs(pixels - expected).mean() < (6 if suffix == "jpg" else 0.01)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    wide = (np.arange(256, dtype=np.uint16) << 8).reshape(16, 16)
    path = tmp_path / f"wide.{suffix}"
    Image.fromarray(wide).save(path)
    np.testing.assert_array_equal(read_image(path), np.repeat((wide >> 8).astype(np.uint8)[..., None], 3, 2))


def test_exif_of_a_jpeg_is_honoured(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6
    path = tmp_path / "phone.jpg"
    stored_as(np.kron(upright(), np.ones((8, 8, 1), np.uint8)), 6).save(path, exif=exif, quality=95)
    pixels = read_image(path)
    assert pixels.shape == (128, 192, 3)
    np.testing.assert_allclose(pixels[8, 8], (220, 30, 30), atol=12)
    np.testing.assert_allclose(pixels[-8, 8], (30, 30, 220), atol=12)
    np.testing.assert_array_equal(pixels, np.asarray(ImageOps.exif_transpose(Image.open(path))))


@pytest.mark.parametrize("content", ["truncated", "empty", "text", "header", "missing"])
def test_unreadable_files_are_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    whole = path.read_bytes()
    parts = {"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"not a picture", "header": whole[:20]}
    path.unlink() if content == "missing" else path.write_bytes(parts[content])
    with pytest.raises(UserError, match=r"broken\.jpg"):
        read_image(path)
