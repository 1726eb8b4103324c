"""Training samples: decoded pictures kept in memory within a budget, changed at random by seed, epoch and index alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from detkit.core.console import say
from detkit.data.augment import Sample, augmented
from detkit.data.dataset import Dataset
from detkit.data.geometry import Geometry
from detkit.data.images import read_image
from detkit.data.table import LabelledImage
from detkit.recipe.schema import AugmentSettings


class TrainingSamples:
    """`sample(epoch, index, closed=...)` gives network-size uint8 pictures with boxes in px of the network input.

    Pictures are kept resized to the network size, as many as fit `cache_mb` MiB; loader processes started by fork
    share them. The rest is decoded each time.
    """

    def __init__(self, dataset: Dataset, geometry: Geometry, settings: AugmentSettings, *, seed: int, cache_mb: int) -> None:
        self._images = dataset.images
        self._geometry = geometry
        self._settings = settings
        self._seed = seed
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

    def sample(self, epoch: int, index: int, *, closed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Picture (S, S, 3) uint8, boxes (N, 4) float32 xyxy, labels (N,) int64 of one augmented sample.

        `closed` means without mosaic and with gentle zoom, as in the last epochs.
        """
        rng = np.random.default_rng((self._seed, epoch, index))
        indices = [index]
        if not closed and rng.random() < self._settings.mosaic:
            indices += rng.integers(0, len(self._images), size=3).tolist()
        result = augmented(
            [self._source(i) for i in indices],
            self._settings,
            self._geometry.size_px,
            pad_value=self._geometry.pad_value,
            closed=closed,
            rng=rng,
        )
        return result.image, result.boxes_xyxy, result.labels

    def _num_that_fit(self, budget_bytes: int) -> int:
        places = [self._geometry.place((image.height, image.width)) for image in self._images]
        return int(np.searchsorted(np.cumsum([p.height * p.width * 3 for p in places]), budget_bytes, side="right"))

    def _source(self, index: int) -> Sample:
        image = self._images[index]
        pixels = self._cache[index] if index < len(self._cache) else self._decoded(image)
        where = self._geometry.place((image.height, image.width))
        scale = np.array([where.scale_x, where.scale_y] * 2, np.float32)
        real = ~image.crowd
        return Sample(pixels, image.boxes_xyxy[real] * scale, image.labels[real])

    def _decoded(self, image: LabelledImage) -> np.ndarray:
        return self._geometry.resized(read_image(image.path, upright=image.upright))
