"""Random changes to a training picture: one resampling per source picture, one colour pass, boxes that follow."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from detkit.recipe.schema import AugmentSettings

# Loader processes share the machine with training; OpenCV's own threads would only fight with it.
cv2.setNumThreads(0)

GENTLE_SCALE = (0.8, 1.2)
MOSAIC_CENTRE = (0.3, 0.7)
# RGB to the luma and chroma of NTSC.
YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
RGB_FROM_YIQ = np.linalg.inv(YIQ)


@dataclass(frozen=True)
class Sample:
    """`image` (H, W, 3) uint8 RGB, `boxes_xyxy` (N, 4) float32 px of it, `labels` (N,).

    `fit` scales its px so that the long side of the whole picture equals the network input's.
    """

    image: np.ndarray
    boxes_xyxy: np.ndarray
    labels: np.ndarray
    fit: float = 1.0


@dataclass(frozen=True)
class Window:
    """A rectangle of the output, px, right and bottom exclusive."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True)
class Span:
    """Along one axis: source px `begin` to `end` are drawn at output px `first` to `last`: output = source * scale + offset."""

    begin: int
    end: int
    first: int
    last: int
    scale: float
    offset: float


@dataclass(frozen=True)
class Part:
    """A source as it was drawn: along both axes, and inside which window."""

    source: Sample
    x: Span
    y: Span
    window: Window


@dataclass(frozen=True)
class Placement:
    """Where and how a source is to be drawn: zoom 1 fits it into the output, its middle lies at the centre, px."""

    window: Window
    zoom: float
    mirrored_x: bool
    mirrored_y: bool
    centre_x: float
    centre_y: float


class Scene:
    """A training picture in the making, drawn into `canvas` (size_px, size_px, 3) from one source or, in a mosaic, from four.

    All that is random about places is drawn from `rng` before any source is at hand, so that sources may be drawn in any
    order, and decoded no larger than their zoom needs. `closed` uses gentle zoom.
    """

    def __init__(
        self, canvas: np.ndarray, num_sources: int, settings: AugmentSettings, *, closed: bool, rng: np.random.Generator
    ) -> None:
        size_px = canvas.shape[0]
        windows = mosaic_windows(size_px, rng) if num_sources == 4 else [Window(0, 0, size_px, size_px)]
        self.placements = [placed(window, settings, size_px, closed=closed, rng=rng) for window in windows]
        self.num_drawn = 0
        self._canvas = canvas
        self._parts: list[Part | None] = [None] * num_sources
        self._settings = settings
        self._rng = rng

    @property
    def complete(self) -> bool:
        """Whether all sources are drawn."""
        return self.num_drawn == len(self._parts)

    def draw(self, number: int, source: Sample, *, pad_value: int) -> None:
        """Draw the source of a placement."""
        if self.num_drawn == 0:
            self._canvas.fill(pad_value)
        self.num_drawn += 1
        self._parts[number] = drawn(source, self.placements[number], self._canvas)

    def finished(self) -> Sample:
        """The picture in its colours and what is left of its sources' boxes, once all of them are drawn."""
        boxes, labels = moved_boxes([part for part in self._parts if part is not None], self._settings)
        return Sample(recoloured(self._canvas, self._settings, self._rng, self._canvas), boxes, labels)


def mosaic_windows(size_px: int, rng: np.random.Generator) -> list[Window]:
    """Four windows that meet in a random point near the middle."""
    x, y = (rng.uniform(*MOSAIC_CENTRE, size=2) * size_px).astype(int).tolist()
    return [Window(0, 0, x, y), Window(x, 0, size_px, y), Window(0, y, x, size_px), Window(x, y, size_px, size_px)]


def placed(window: Window, settings: AugmentSettings, size_px: int, *, closed: bool, rng: np.random.Generator) -> Placement:
    """A random placement; in a mosaic the middle of the source lies in its window."""
    mosaic = (window.right - window.left, window.bottom - window.top) != (size_px, size_px)
    zoom = float(rng.uniform(*(GENTLE_SCALE if closed else settings.scale)))
    mirrored_x, mirrored_y = (rng.random(2) < (settings.flip_horizontal, settings.flip_vertical)).tolist()
    if mosaic:
        centre_x, centre_y = rng.uniform(window.left, window.right), rng.uniform(window.top, window.bottom)
    else:
        centre_x, centre_y = (size_px * (0.5 + rng.uniform(-settings.translate, settings.translate, size=2))).tolist()
    return Placement(window, zoom, mirrored_x, mirrored_y, centre_x, centre_y)


def drawn(source: Sample, place: Placement, canvas: np.ndarray) -> Part | None:
    """Draw a flipped, zoomed and shifted source into its window of `canvas`; None where nothing of it is seen."""
    window = place.window
    height, width = source.image.shape[:2]
    scale = place.zoom * source.fit
    x = span(width, scale, place.centre_x, inside=(window.left, window.right), mirrored=place.mirrored_x)
    y = span(height, scale, place.centre_y, inside=(window.top, window.bottom), mirrored=place.mirrored_y)
    if x is None or y is None:
        return None
    view = canvas[y.first : y.last, x.first : x.last]
    cv2.resize(source.image[y.begin : y.end, x.begin : x.end], view.shape[1::-1], dst=view, interpolation=cv2.INTER_LINEAR)
    if place.mirrored_x or place.mirrored_y:
        cv2.flip(view, -1 if place.mirrored_x and place.mirrored_y else int(place.mirrored_x), dst=view)
    return Part(source, x, y, window)


def span(length: int, scale: float, centre: float, *, inside: tuple[int, int], mirrored: bool) -> Span | None:
    """What is seen of `length` px, scaled about their middle at `centre`, `inside` an interval; None where nothing is.

    Whole pixels are drawn at whole pixels, so that a resize of just them does; the scale gives way by a part of one.
    """
    shown = max(1, round(length * scale))
    low = round(centre - shown / 2)
    first, last = max(low, inside[0]), min(low + shown, inside[1])
    if last <= first:
        return None
    begin = min(round((first - low) * length / shown), length - 1)
    end = max(begin + 1, round((last - low) * length / shown))
    gain = (last - first) / (end - begin)
    if mirrored:
        begin, end = length - end, length - begin
        return Span(begin, end, first, last, -gain, last + begin * gain)
    return Span(begin, end, first, last, gain, first - begin * gain)


def moved_boxes(parts: Sequence[Part], settings: AugmentSettings) -> tuple[np.ndarray, np.ndarray]:
    """Boxes and labels of drawn parts, clipped to their windows, without those too small or too hidden to learn from."""
    if not any(len(part.source.labels) for part in parts):
        return np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
    boxes = np.concatenate([part.source.boxes_xyxy for part in parts])
    labels = np.concatenate([part.source.labels for part in parts])
    rows = [
        (p.x.scale, p.y.scale, p.x.offset, p.y.offset, p.window.left, p.window.top, p.window.right, p.window.bottom) for p in parts
    ]
    places = np.repeat(np.array(rows, float), [len(part.source.labels) for part in parts], axis=0)
    one, other = (boxes[:, corner] * places[:, :2] + places[:, 2:4] for corner in (slice(0, 2), slice(2, 4)))
    # A mirrored picture's right sides become left ones.
    low, high = np.minimum(one, other), np.maximum(one, other)
    clipped_low, clipped_high = np.maximum(low, places[:, 4:6]), np.minimum(high, places[:, 6:])
    sides = clipped_high - clipped_low
    keep = (sides.min(1) > settings.min_box_px) & (sides.prod(1) >= settings.min_visible * (high - low).prod(1))
    return np.concatenate((clipped_low, clipped_high), 1, dtype=np.float32)[keep], labels[keep]


def recoloured(image: np.ndarray, settings: AugmentSettings, rng: np.random.Generator, out: np.ndarray | None = None) -> np.ndarray:
    """Contrast about mid-grey, brightness, saturation and hue through one 3x4 matrix; in `out` where it is given."""
    contrast = 1 + rng.uniform(-settings.contrast, settings.contrast)
    brightness = 1 + rng.uniform(-settings.brightness, settings.brightness)
    saturation = 1 + rng.uniform(-settings.saturation, settings.saturation)
    turn = 2 * np.pi * rng.uniform(-settings.hue, settings.hue)
    gain, shift = contrast * brightness, 128 * (1 - contrast) * brightness
    if saturation == 1 and turn == 0:
        levels = np.arange(256) * gain + shift
        return cv2.LUT(image, np.clip(np.rint(levels), 0, 255).astype(np.uint8), dst=out)
    matrix = chroma_matrix(saturation, turn)
    return cv2.transform(image, np.column_stack([matrix * gain, matrix.sum(1) * shift]), dst=out)


def chroma_matrix(saturation: float, turn: float) -> np.ndarray:
    """RGB matrix (3, 3) that keeps luma and scales and turns chroma: YIQ of NTSC, turned by `turn` radians."""
    cos, sin = saturation * np.cos(turn), saturation * np.sin(turn)
    return RGB_FROM_YIQ @ np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]) @ YIQ
