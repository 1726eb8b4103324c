"""The geometry object places pictures and boxes consistently, and takes boxes back to where they came from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detkit.data.geometry import Geometry
from detkit.recipe.schema import DataSettings

SIDES = st.integers(1, 2000)


@settings(max_examples=200, deadline=None)
@given(height=SIDES, width=SIDES, size=st.sampled_from([32, 320, 416, 640]), corners=st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_boxes_return_from_the_input_to_the_original(height: int, width: int, size: int, corners: list[float]) -> None:
    geometry = Geometry(size)
    xs, ys = sorted(corners[:2]), sorted(corners[2:])
    boxes = np.array([[xs[0] * width, ys[0] * height, xs[1] * width, ys[1] * height]], np.float32)
    there = geometry.boxes_input_from_original(boxes, (height, width))
    back = geometry.boxes_original_from_input(there, (height, width))
    assert (there >= -1e-3).all() and (there <= size + 1e-3).all()
    # float32 has 2^-23 relative precision at the larger of the two frames.
    tolerance = 4e-6 * size * max(1.0, max(height, width) / size) + 1e-4
    np.testing.assert_allclose(back, boxes, atol=tolerance * max(1.0, max(height, width) / size))


@settings(max_examples=100, deadline=None)
@given(height=SIDES, width=SIDES, size=st.sampled_from([32, 320, 640]))
def test_picture_fits_inside_and_touches_two_sides(height: int, width: int, size: int) -> None:
    where = Geometry(size).place((height, width))
    assert where.left >= 0 and where.left + where.width <= size
    assert where.top >= 0 and where.top + where.height <= size
    assert max(where.width, where.height) == size
    assert where.scale_x * width == pytest.approx(where.width) and where.scale_y * height == pytest.approx(where.height)


@pytest.mark.parametrize("original_hw", [(240, 320), (320, 240), (97, 101), (64, 64), (500, 20)])
def test_box_of_a_drawn_rectangle_is_found_again_in_the_input(original_hw: tuple[int, int]) -> None:
    height, width = original_hw
    image = np.zeros((height, width, 3), np.uint8)
    x1, y1, x2, y2 = width // 4, height // 4, width - width // 8, height - height // 8
    image[y1:y2, x1:x2] = 255
    geometry = Geometry(128, pad_value=0)
    bright = geometry.letterbox(image)[..., 0] >= 128
    ys, xs = np.nonzero(bright)
    found = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
    expected = geometry.boxes_input_from_original(np.array([[x1, y1, x2, y2]]), original_hw)[0]
    np.testing.assert_allclose(found, expected, atol=0.75)


def test_border_has_the_pad_value_and_the_picture_is_in_the_middle() -> None:
    geometry = Geometry(64, pad_value=7)
    canvas = geometry.letterbox(np.full((16, 32, 3), 200, np.uint8))
    assert canvas.shape == (64, 64, 3)
    assert (canvas[:16] == 7).all() and (canvas[48:] == 7).all() and (canvas[16:48] == 200).all()


def test_picture_of_the_input_size_is_untouched() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    np.testing.assert_array_equal(Geometry(32).letterbox(image), image)


def test_normalisation_is_the_formula() -> None:
    geometry = Geometry(8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    result = geometry.normalised(images)
    expected = ((images / 255.0 - geometry.mean) / geometry.std).transpose(0, 3, 1, 2)
    assert result.dtype == np.float32 and result.flags.c_contiguous
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6)


def test_boxes_are_clipped_to_the_original() -> None:
    boxes = Geometry(64).boxes_original_from_input(np.array([[-10, -10, 100, 100]], np.float32), (30, 60))
    np.testing.assert_array_equal(boxes, [[0, 0, 60, 30]])


def test_dictionary_round_trip_keeps_everything() -> None:
    geometry = Geometry.from_settings(DataSettings(image_size_px=416, pad_value=3, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)))
    assert Geometry.from_dict(geometry.as_dict()) == geometry


def test_no_boxes_stay_no_boxes() -> None:
    empty = np.zeros((0, 4), np.float32)
    assert Geometry(64).boxes_input_from_original(empty, (10, 20)).shape == (0, 4)
    assert Geometry(64).boxes_original_from_input(empty, (10, 20)).shape == (0, 4)
