"""Decoding at the size needed agrees with the pictures that evaluation sees."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from detkit.core.errors import UserError
from detkit.data.decode import jpeg_orientation, read_at_least, shrink_to, start_of_scan
from detkit.data.images import read_image


def smooth(path: Path, wh: tuple[int, int] = (203, 141), mode: str = "RGB", orientation: int = 1) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = Image.fromarray(noise).resize(wh, Image.Resampling.BICUBIC).convert(mode)
    options = {"quality": 95, "exif": exif} if path.suffix == ".jpg" else {}
    picture.save(path, **options)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("long_side_px", [20, 40, 90, 203, 500])
def test_smaller_pictures_show_the_same_scene_in_the_same_place(tmp_path: Path, long_side_px: int, orientation: int) -> None:
    path = smooth(tmp_path / "a.jpg", orientation=orientation)
    whole, decoded = read_image(path), read_at_least(path, long_side_px)
    height, width = decoded.pixels.shape[:2]
    assert max(height, width) >= min(long_side_px, 203) and max(height, width) < max(2 * long_side_px + 2, 204)
    # Where each pixel centre of the smaller picture lies in the whole one.
    (sx, sy), (ox, oy) = decoded.scale_xy, decoded.origin_xy
    xs, ys = np.meshgrid((np.arange(width) + 0.5 - ox) / sx - 0.5, (np.arange(height) + 0.5 - oy) / sy - 0.5)
    expected = cv2.remap(whole, xs.astype(np.float32), ys.astype(np.float32), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    inner = (slice(2, -2), slice(2, -2))
    assert np.abs(expected[inner].astype(int) - decoded.pixels[inner]).mean() < 3


@pytest.mark.parametrize("name", ["a.png", "grey.jpg", "cmyk.jpg"])
def test_what_the_fast_decoder_does_not_take_comes_from_pillow(tmp_path: Path, name: str) -> None:
    path = smooth(tmp_path / name, mode={"grey.jpg": "L", "cmyk.jpg": "CMYK"}.get(name, "RGB"))
    assert np.abs(read_at_least(path, 1000).pixels.astype(int) - read_image(path)).max() <= 3
    assert max(read_at_least(path, 60).pixels.shape) in (101, 102)


def test_orientation_is_left_alone_where_labels_were_drawn_unturned(tmp_path: Path) -> None:
    path = smooth(tmp_path / "a.jpg", orientation=6)
    assert read_at_least(path, 1000, upright=False).pixels.shape == (141, 203, 3)
    assert read_at_least(path, 1000).pixels.shape == (203, 141, 3)


@pytest.mark.parametrize("progressive", [False, True])
def test_metadata_end_where_the_scan_begins(tmp_path: Path, progressive: bool) -> None:
    picture = Image.open(smooth(tmp_path / "a.png"))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "a.jpg", exif=exif, progressive=progressive, comment=b"\xff\xda in a comment")
    data = (tmp_path / "a.jpg").read_bytes()
    end = start_of_scan(data)
    assert data[end : end + 2] == b"\xff\xda" and data.index(b"Exif") < end and data.index(b"in a comment") < end
    # Fill bytes before a marker, and what only looks like EXIF after the scan.
    assert jpeg_orientation(data[:2] + b"\xff\xff" + data[2:]) == 6
    picture.save(tmp_path / "b.jpg", progressive=progressive)
    plain = (tmp_path / "b.jpg").read_bytes()
    assert jpeg_orientation(plain + data[2:end]) == 1
    assert start_of_scan(plain[:40]) == 40


@pytest.mark.parametrize("content", [b"", b"\xff\xd8garbage", b"<html>"])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.jpg"):
        read_at_least(tmp_path / "a.jpg", 64)


def test_shrink_never_falls_below_what_is_wanted() -> None:
    assert [shrink_to((480, 640), px) for px in (641, 640, 321, 320, 160, 80, 10)] == [1, 1, 1, 2, 4, 8, 8]
