"""Random changes move boxes with their pixels and depend on seed, epoch and index alone."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detkit.data.augment import Part, Sample, Scene, Span, Window, chroma_matrix, moved_boxes, recoloured, span
from detkit.data.dataset import Dataset
from detkit.data.decode import Decoded, read_at_least
from detkit.data.geometry import Geometry
from detkit.data.table import LabelledImage
from detkit.data.training import TrainingSamples
from detkit.recipe.schema import AugmentSettings

COLOURS = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)], np.uint8)
COLOURLESS = {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0}
SIZE = 160


def rectangle_sample(label: int, hw: tuple[int, int], box: tuple[int, int, int, int]) -> Sample:
    """A black picture with one rectangle in the colour of its label."""
    image = np.zeros((*hw, 3), np.uint8)
    x1, y1, x2, y2 = box
    image[y1:y2, x1:x2] = COLOURS[label]
    return Sample(image, np.array([box], np.float32), np.array([label]))


def augmented(sources: list[Sample], settings: AugmentSettings, *, pad_value: int, closed: bool, rng: np.random.Generator) -> Sample:
    """A scene of all sources, the last drawn first."""
    scene = Scene(np.empty((SIZE, SIZE, 3), np.uint8), len(sources), settings, closed=closed, rng=rng)
    for number in reversed(range(len(sources))):
        assert not scene.complete
        scene.draw(number, sources[number], pad_value=pad_value)
    assert scene.complete
    return scene.finished()


def extent_of(image: np.ndarray, label: int) -> np.ndarray:
    """Box of the pixels that are nearer to the colour of `label` than to black."""
    distance = np.abs(image.astype(int) - COLOURS[label]).max(2)
    ys, xs = np.nonzero(distance < 128)
    return np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1], float)


@pytest.mark.parametrize("flips", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("hw", [(160, 160), (120, 160), (160, 90)])
def test_boxes_follow_their_pixels(hw: tuple[int, int], flips: tuple[int, int]) -> None:
    settings = AugmentSettings(flip_horizontal=flips[0], flip_vertical=flips[1], scale=(0.5, 1.5), translate=0.2, **COLOURLESS)
    source = rectangle_sample(0, hw, (hw[1] // 5, hw[0] // 3, hw[1] // 2, hw[0] // 2))
    for seed in range(12):
        rng = np.random.default_rng(seed)
        result = augmented([source], settings, pad_value=0, closed=False, rng=rng)
        assert result.image.shape == (SIZE, SIZE, 3) and result.image.dtype == np.uint8
        for box, label in zip(result.boxes_xyxy, result.labels, strict=True):
            np.testing.assert_allclose(extent_of(result.image, label), box, atol=1.0)


def test_mosaic_keeps_every_box_on_its_pixels_and_drops_hidden_ones() -> None:
    settings = AugmentSettings(scale=(0.5, 1.2), flip_vertical=0.5, min_visible=0.2, **COLOURLESS)
    sources = [rectangle_sample(label, (120, 160), (40, 30, 120, 90)) for label in range(4)]
    kept = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        result = augmented(sources, settings, pad_value=0, closed=False, rng=rng)
        kept += len(result.boxes_xyxy)
        for box, label in zip(result.boxes_xyxy, result.labels, strict=True):
            np.testing.assert_allclose(extent_of(result.image, label), box, atol=1.0)
        for label in set(range(4)) - set(result.labels.tolist()):
            # What is left out is a sliver: less than a fifth of the smallest zoomed rectangle, plus its rim.
            assert (np.abs(result.image.astype(int) - COLOURS[label]).max(2) < 128).sum() < 0.2 * 80 * 60 * 1.2**2 + 200
    assert kept > 60


@pytest.mark.parametrize("flips", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_mirroring_alone_is_exact_to_the_pixel(flips: tuple[int, int]) -> None:
    settings = AugmentSettings(flip_horizontal=flips[0], flip_vertical=flips[1], scale=(1, 1), translate=0, **COLOURLESS)
    image = np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8)
    source = Sample(image, np.array([[10, 20, 50, 70]], np.float32), np.array([2]))
    result = augmented([source], settings, pad_value=114, closed=False, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(result.image[20:140], image[:: 1 - 2 * flips[1], :: 1 - 2 * flips[0]])
    assert (result.image[:20] == 114).all() and (result.image[140:] == 114).all()
    x1, x2 = (110, 150) if flips[0] else (10, 50)
    y1, y2 = (50, 100) if flips[1] else (20, 70)
    np.testing.assert_array_equal(result.boxes_xyxy, [[x1, y1 + 20, x2, y2 + 20]])


@pytest.mark.parametrize(("min_visible", "kept"), [(0.0, [0, 1]), (0.25, [0, 1]), (0.3, [0]), (1.0, [0])])
def test_boxes_are_clipped_to_their_window_and_dropped_where_too_little_is_left(min_visible: float, kept: list[int]) -> None:
    # The second box has a quarter of its area inside the window, the third none.
    boxes = np.array([[60, 60, 90, 90], [30, 30, 70, 70], [0, 0, 40, 40]], np.float32)
    source, window = Sample(np.zeros((160, 160, 3), np.uint8), boxes, np.arange(3)), Window(50, 50, 160, 160)
    settings = AugmentSettings(min_visible=min_visible)
    whole = Span(0, 160, 0, 160, 1.0, 0.0)
    found, labels = moved_boxes([Part(source, whole, whole, window)], settings)
    assert labels.tolist() == kept
    np.testing.assert_array_equal(found, np.array([[60, 60, 90, 90], [50, 50, 70, 70]])[kept])


def test_small_boxes_are_dropped() -> None:
    settings = AugmentSettings(scale=(1, 1), translate=0, min_box_px=9, **COLOURLESS)
    source = rectangle_sample(0, (160, 160), (10, 10, 18, 60))
    result = augmented([source], settings, pad_value=0, closed=False, rng=np.random.default_rng(0))
    assert result.boxes_xyxy.shape == (0, 4) and result.labels.shape == (0,)


def test_closed_uses_gentle_zoom() -> None:
    settings = AugmentSettings(scale=(0.1, 0.1), translate=0, **COLOURLESS)
    source = rectangle_sample(0, (160, 160), (40, 40, 120, 120))
    result = augmented([source], settings, pad_value=0, closed=True, rng=np.random.default_rng(0))
    assert 0.8 * 80 - 1 <= np.diff(result.boxes_xyxy[0, ::2])[0] <= 1.2 * 80 + 1


def test_no_colour_change_is_the_identity_and_grey_stays_grey() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    np.testing.assert_array_equal(recoloured(image, AugmentSettings(**COLOURLESS), np.random.default_rng(0)), image)
    np.testing.assert_allclose(chroma_matrix(1.0, 0.0), np.eye(3), atol=1e-12)
    np.testing.assert_allclose(chroma_matrix(0.3, 1.0) @ np.ones(3), np.ones(3), atol=1e-3)
    np.testing.assert_allclose(chroma_matrix(0.0, 0.0), np.tile([0.299, 0.587, 0.114], (3, 1)), atol=1e-3)


def training_samples(folder: Path, *, cache_mb: int = 64, seed: int = 5, smooth: bool = False) -> TrainingSamples:
    """Six noisy, or smooth, pictures of different shapes with two boxes each."""
    rng = np.random.default_rng(1)
    images = []
    for index in range(6):
        height, width = rng.integers(50, 120, 2).tolist()
        path = folder / f"{index}.png"
        noise = rng.integers(0, 256, (3, 4, 3) if smooth else (height, width, 3), np.uint8)
        Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(path)
        boxes = np.float32([(5, 5, 30, 40), (20, 10, 45, 45)])
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        images.append(LabelledImage(path, index + 1, width, height, boxes, np.array([0, 1]), np.zeros(2, bool), areas))
    dataset = Dataset(tuple(images), ("a", "b"), (1, 2), ())
    return TrainingSamples(dataset, Geometry(64), AugmentSettings(), seed=seed, cache_mb=cache_mb)


def assert_same(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_samples_depend_on_seed_epoch_and_index_alone(tmp_path: Path) -> None:
    samples = training_samples(tmp_path)
    wanted = [(epoch, index) for epoch in (0, 3) for index in range(6)]
    forward = {key: samples.sample(*key, closed=False) for key in wanted}
    for key in reversed(wanted):
        assert_same(samples.sample(*key, closed=False), forward[key])
    assert not np.array_equal(forward[0, 0][0], forward[3, 0][0])
    assert not np.array_equal(training_samples(tmp_path, seed=6).sample(0, 0, closed=False)[0], forward[0, 0][0])


def test_samples_without_cache_show_the_same_scene(tmp_path: Path) -> None:
    """What is seen is rounded to pixels of the kept picture or of the file: boxes agree to a pixel of either, the scene nearly."""
    cached, decoded = (training_samples(tmp_path, cache_mb=cache_mb, smooth=True) for cache_mb in (64, 0))
    for index in range(6):
        one, other = cached.sample(2, index, closed=False), decoded.sample(2, index, closed=False)
        np.testing.assert_allclose(one[1], other[1], atol=2.0)
        np.testing.assert_array_equal(one[2], other[2])
        assert np.abs(one[0].astype(int) - other[0]).mean() < 5


def test_mosaics_of_a_batch_decode_each_picture_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = training_samples(tmp_path, cache_mb=0)
    opened: list[Path] = []

    def counted(path: Path, *arguments: float, **options: bool) -> Decoded:
        opened.append(path)
        return read_at_least(path, *arguments, **options)

    monkeypatch.setattr("detkit.data.training.read_at_least", counted)
    images, boxes, labels = samples.batch(1, [4, 0, 2], closed=False)
    assert sorted(path.stem for path in opened) == ["0", "2", "4"]
    again, more_boxes, more_labels = samples.batch(1, [4, 0, 2], closed=False)
    assert_same((images, *boxes, *labels), (again, *more_boxes, *more_labels))


def test_a_batch_of_kept_pictures_holds_the_samples_of_its_pictures(tmp_path: Path) -> None:
    samples = training_samples(tmp_path)
    images, boxes, labels = samples.batch(2, [4, 0, 2], closed=False)
    for row, index in enumerate([4, 0, 2]):
        assert_same(samples.sample(2, index, closed=False), (images[row], boxes[row], labels[row]))


@pytest.mark.parametrize("mirrored", [False, True])
def test_what_is_seen_of_a_picture_lies_where_its_scale_says(mirrored: bool) -> None:
    rng = np.random.default_rng(4)
    nothing = 0
    for _ in range(500):
        length, scale, centre = int(rng.integers(1, 400)), float(rng.uniform(0.05, 4)), float(rng.uniform(-100, 200))
        seen = span(length, scale, centre, inside=(10, 90), mirrored=mirrored)
        low, high = centre - length * scale / 2, centre + length * scale / 2
        if seen is None:
            nothing += 1
            assert high <= 11 or low >= 89
            continue
        assert 0 <= seen.begin < seen.end <= length and 10 <= seen.first < seen.last <= 90
        ends = sorted((seen.begin * seen.scale + seen.offset, seen.end * seen.scale + seen.offset))
        np.testing.assert_allclose(ends, (seen.first, seen.last), atol=1e-9)
        # No further from the exact place than half a source pixel and an output pixel of rounding.
        middle = np.array([seen.begin, seen.end]) - length / 2
        exact = sorted(middle * scale * (-1 if mirrored else 1) + centre)
        np.testing.assert_allclose(exact, ends, atol=scale / 2 + 1.5)
    assert 20 < nothing < 400


def test_samples_are_the_same_in_worker_processes(tmp_path: Path) -> None:
    samples = training_samples(tmp_path)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        elsewhere = pool.starmap(sample_in_worker, [(samples, 1, index) for index in range(4)])
    for index, result in enumerate(elsewhere):
        assert_same(result, samples.sample(1, index, closed=False))


def sample_in_worker(samples: TrainingSamples, epoch: int, index: int) -> tuple[np.ndarray, ...]:
    return samples.sample(epoch, index, closed=False)


def test_samples_have_the_types_and_bounds_that_training_expects(tmp_path: Path) -> None:
    samples = training_samples(tmp_path)
    for epoch in range(5):
        image, boxes, labels = samples.sample(epoch, epoch, closed=False)
        assert image.shape == (64, 64, 3) and image.dtype == np.uint8 and image.flags.c_contiguous
        assert boxes.dtype == np.float32 and labels.dtype == np.int64 and len(boxes) == len(labels)
        assert (boxes >= 0).all() and (boxes <= 64).all() and (boxes[:, 2:] > boxes[:, :2]).all()


def test_a_cache_that_is_too_small_says_how_many_pictures_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training_samples(tmp_path, cache_mb=0)
    assert "0 of 6 pictures fit into 0 MiB" in capsys.readouterr().err
