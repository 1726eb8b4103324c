"""Random changes to a training picture: one resampling per source picture, one colour pass, boxes that follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from detkit.recipe.schema import AugmentSettings

# Loader processes share the machine with training; OpenCV's own threads would only fight with it.
cv2.setNumThreads(0)

GENTLE_SCALE = (0.8, 1.2)
MOSAIC_CENTRE = (0.3, 0.7)
# Where less of a resized picture than this is seen, only that part is warped.
SHOWN_SHARE = 0.4


@dataclass(frozen=True)
class Sample:
    """`image` (H, W, 3) uint8 RGB, `boxes_xyxy` (N, 4) float32 px of it, `labels` (N,).

    `fit` scales its px so that the long side of the whole picture equals the network input's.
    """

    image: np.ndarray
    boxes_xyxy: np.ndarray
    labels: np.ndarray
    fit: float = 1.0


# Gives a picture and its boxes for a zoom.
Source = Callable[[float], Sample]


@dataclass(frozen=True)
class Window:
    """A rectangle of the output, px, right and bottom exclusive."""

    left: int
    top: int
    right: int
    bottom: int


def augmented(
    sources: Sequence[Source],
    settings: AugmentSettings,
    size_px: int,
    *,
    pad_value: int,
    closed: bool,
    rng: np.random.Generator,
) -> Sample:
    """A training picture (size_px, size_px, 3) from one source, or from four in a mosaic.

    `closed` uses gentle zoom. A source gets the zoom it will be shown at, so that it need not be decoded larger.
    """
    canvas = np.full((size_px, size_px, 3), pad_value, np.uint8)
    windows = mosaic_windows(size_px, rng) if len(sources) == 4 else [Window(0, 0, size_px, size_px)]
    parts = [
        warped(source, window, canvas, settings=settings, closed=closed, rng=rng)
        for source, window in zip(sources, windows, strict=True)
    ]
    boxes = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    return Sample(recoloured(canvas, settings, rng), boxes, labels)


def mosaic_windows(size_px: int, rng: np.random.Generator) -> list[Window]:
    """Four windows that meet in a random point near the middle."""
    x, y = (rng.uniform(*MOSAIC_CENTRE, size=2) * size_px).astype(int).tolist()
    return [Window(0, 0, x, y), Window(x, 0, size_px, y), Window(0, y, x, size_px), Window(x, y, size_px, size_px)]


def warped(
    load: Source,
    window: Window,
    canvas: np.ndarray,
    *,
    settings: AugmentSettings,
    closed: bool,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a flipped, zoomed and shifted source into a window of `canvas`; return its boxes and labels there."""
    size_px = canvas.shape[0]
    mosaic = (window.right - window.left, window.bottom - window.top) != (size_px, size_px)
    zoom = rng.uniform(*(GENTLE_SCALE if closed else settings.scale))
    signs = np.where(rng.random(2) < (settings.flip_horizontal, settings.flip_vertical), -1.0, 1.0)
    if mosaic:
        centre = np.array([rng.uniform(window.left, window.right), rng.uniform(window.top, window.bottom)])
    else:
        centre = size_px * (0.5 + rng.uniform(-settings.translate, settings.translate, size=2))
    source = load(zoom)
    # Whole pixels: the picture can then be resized and copied, which costs a quarter of a warp.
    size = np.array(source.image.shape[1::-1])
    shown = np.maximum(1, np.rint(size * zoom * source.fit)).astype(int)
    low = np.rint(centre - shown / 2).astype(int)
    scale, offset = signs * shown / size, np.where(signs > 0, low, low + shown)
    draw(source.image, canvas, window, scale=scale, low=low, shown=shown)
    return moved_boxes(source, scale, offset, window=window, settings=settings)


def draw(image: np.ndarray, canvas: np.ndarray, window: Window, *, scale: np.ndarray, low: np.ndarray, shown: np.ndarray) -> None:
    """Put `image`, `shown` (w, h) px large and mirrored where `scale` is negative, at `low` (x, y) of `canvas`, within the window."""
    first = np.maximum(low, (window.left, window.top))
    last = np.minimum(low + shown, (window.right, window.bottom))
    if (last <= first).any():
        return
    view = canvas[first[1] : last[1], first[0] : last[0]]
    if (last - first).prod() >= SHOWN_SHARE * shown.prod():
        resized = cv2.resize(image, tuple(shown.tolist()), interpolation=cv2.INTER_LINEAR)
        if (scale < 0).any():
            resized = cv2.flip(resized, -1 if (scale < 0).all() else int(scale[0] < 0))
        inside = first - low
        view[:] = resized[inside[1] : inside[1] + view.shape[0], inside[0] : inside[0] + view.shape[1]]
        return
    offset = np.where(scale > 0, low, low + shown) - first
    # warpAffine maps pixel centres; the offset is between edges, half a pixel apart.
    matrix = np.column_stack([np.diag(scale), offset + (scale - 1) * 0.5])
    size = (view.shape[1], view.shape[0])
    view[:] = cv2.warpAffine(image, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def moved_boxes(
    source: Sample, scale: np.ndarray, offset: np.ndarray, *, window: Window, settings: AugmentSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes after that, clipped to the window, without those too small or too hidden to learn from."""
    corners = source.boxes_xyxy.reshape(-1, 2, 2) * scale + offset
    low, high = corners.min(1), corners.max(1)
    area = (high - low).prod(1)
    low = np.clip(low, (window.left, window.top), (window.right, window.bottom))
    high = np.clip(high, (window.left, window.top), (window.right, window.bottom))
    sides = high - low
    keep = (sides.min(1) > settings.min_box_px) & (sides.prod(1) >= settings.min_visible * area)
    return np.concatenate([low, high], 1)[keep].astype(np.float32), source.labels[keep]


def recoloured(image: np.ndarray, settings: AugmentSettings, rng: np.random.Generator) -> np.ndarray:
    """Contrast about mid-grey, brightness, saturation and hue through one 3x4 matrix."""
    contrast = 1 + rng.uniform(-settings.contrast, settings.contrast)
    brightness = 1 + rng.uniform(-settings.brightness, settings.brightness)
    saturation = 1 + rng.uniform(-settings.saturation, settings.saturation)
    turn = 2 * np.pi * rng.uniform(-settings.hue, settings.hue)
    gain, shift = contrast * brightness, 128 * (1 - contrast) * brightness
    if saturation == 1 and turn == 0:
        levels = np.arange(256) * gain + shift
        return cv2.LUT(image, np.clip(np.rint(levels), 0, 255).astype(np.uint8))
    matrix = chroma_matrix(saturation, turn)
    return cv2.transform(image, np.column_stack([matrix * gain, matrix.sum(1) * shift]))


def chroma_matrix(saturation: float, turn: float) -> np.ndarray:
    """RGB matrix (3, 3) that keeps luma and scales and turns chroma: YIQ of NTSC, turned by `turn` radians."""
    yiq = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    cos, sin = saturation * np.cos(turn), saturation * np.sin(turn)
    return np.linalg.inv(yiq) @ np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]]) @ yiq
