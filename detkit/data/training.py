"""Training samples: decoded pictures kept in memory within a budget, changed at random by seed, epoch and index alone."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from detkit.core.console import say
from detkit.data.augment import Sample, augmented
from detkit.data.dataset import Dataset
from detkit.data.decode import read_at_least
from detkit.data.geometry import Geometry
from detkit.data.images import read_image
from detkit.data.table import LabelledImage
from detkit.recipe.schema import AugmentSettings

# Pictures decoded for one batch, by index.
Pool = dict[int, Sample]
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]


def ignore(index: int) -> None:
    """Nothing wants to know."""


class TrainingSamples:
    """`sample(epoch, index, closed=...)` gives network-size uint8 pictures with boxes in px of the network input.

    Pictures are kept resized to the network size, as many as fit `cache_mb` MiB; loader processes started by fork
    share them. The rest is decoded each time, JPEG files no larger than the zoom needs, and resized once.
    """

    def __init__(self, dataset: Dataset, geometry: Geometry, settings: AugmentSettings, *, seed: int, cache_mb: int) -> None:
        self._images = dataset.images
        self._geometry = geometry
        self._settings = settings
        self._seed = seed
        self._canvas = np.empty((geometry.size_px, geometry.size_px, 3), np.uint8)
        # Called with the index of each picture before its file is read.
        self.reading: Callable[[int], None] = ignore
        num_cached = self._num_that_fit(cache_mb << 20)
        if num_cached < len(self._images):
            say(f"cache: {num_cached} of {len(self._images)} pictures fit into {cache_mb} MiB (data.cache_mb)")
        with ThreadPoolExecutor() as pool:
            self._cache = list(pool.map(self._decoded, self._images[:num_cached]))

    def __len__(self) -> int:
        return len(self._images)

    def name_of(self, index: int) -> str:
        """File name of a picture."""
        return self._images[index].path.name

    def sample(
        self,
        epoch: int,
        index: int,
        *,
        closed: bool,
        batch: Sequence[int] = (),
        pool: Pool | None = None,
        out: np.ndarray | None = None,
    ) -> Drawn:
        """Picture (S, S, 3) uint8, boxes (N, 4) float32 xyxy, labels (N,) int64 of one augmented sample.

        `closed` means without mosaic and with gentle zoom, as in the last epochs. Where not all pictures are kept in
        memory, a mosaic takes its others from `batch`, whose pictures `pool` keeps, so that each is decoded once.
        """
        rng = np.random.default_rng((self._seed, epoch, index))
        indices = [index]
        near = self._settings.mosaic > 0 and not closed and len(batch) > 1 and len(self._cache) < len(self._images)
        if not closed and rng.random() < self._settings.mosaic:
            others = rng.integers(0, len(batch) if near else len(self._images), size=3).tolist()
            indices += [batch[i] for i in others] if near else others
        # Others of the batch may show it larger, and decoding it again costs more than what is spared now.
        least_zoom = self._settings.scale[1] if near else 0.0
        result = augmented(
            [partial(self._source, i, least_zoom=least_zoom, pool={} if pool is None else pool) for i in indices],
            self._settings,
            self._geometry.size_px,
            pad_value=self._geometry.pad_value,
            closed=closed,
            rng=rng,
            canvas=self._canvas,
            out=out,
        )
        return result.image, result.boxes_xyxy, result.labels

    def batch(self, epoch: int, indices: Sequence[int], *, closed: bool) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """Pictures (B, S, S, 3), boxes and labels of one batch; they depend on the seed, the epoch and `indices` alone."""
        pool: Pool = {}
        images = np.empty((len(indices), *self._canvas.shape), np.uint8)
        drawn = [
            self.sample(epoch, index, closed=closed, batch=indices, pool=pool, out=image)
            for index, image in zip(indices, images, strict=True)
        ]
        return images, [boxes for _, boxes, _ in drawn], [labels for _, _, labels in drawn]

    def _num_that_fit(self, budget_bytes: int) -> int:
        places = [self._geometry.place((image.height, image.width)) for image in self._images]
        return int(np.searchsorted(np.cumsum([p.height * p.width * 3 for p in places]), budget_bytes, side="right"))

    def _source(self, index: int, zoom: float, *, least_zoom: float, pool: Pool) -> Sample:
        if index in pool:
            return pool[index]
        image = self._images[index]
        real = ~image.crowd
        if index < len(self._cache):
            where = self._geometry.place((image.height, image.width))
            scale = np.array([where.scale_x, where.scale_y] * 2, np.float32)
            return Sample(self._cache[index], image.boxes_xyxy[real] * scale, image.labels[real])
        self.reading(index)
        wanted_px = max(zoom, least_zoom) * self._geometry.size_px
        decoded = read_at_least(image.path, wanted_px, upright=image.upright)
        scale_xy, origin_xy = (np.array(pair * 2, np.float32) for pair in (decoded.scale_xy, decoded.origin_xy))
        fit = self._geometry.size_px / (max(image.height, image.width) * decoded.scale_xy[0])
        pool[index] = Sample(decoded.pixels, image.boxes_xyxy[real] * scale_xy + origin_xy, image.labels[real], fit)
        return pool[index]

    def _decoded(self, image: LabelledImage) -> np.ndarray:
        return self._geometry.resized(read_image(image.path, upright=image.upright))
