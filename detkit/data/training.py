"""Training samples: decoded pictures kept in memory within a budget, changed at random by seed, epoch and index alone."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from detkit.core.console import say
from detkit.data.augment import Sample, Scene
from detkit.data.dataset import Dataset
from detkit.data.decode import read_at_least
from detkit.data.geometry import Geometry
from detkit.data.images import read_image
from detkit.data.table import LabelledImage
from detkit.recipe.schema import AugmentSettings

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

    def sample(self, epoch: int, index: int, *, closed: bool) -> Drawn:
        """Picture (S, S, 3) uint8, boxes (N, 4) float32 xyxy, labels (N,) int64 of one augmented sample.

        `closed` means without mosaic and with gentle zoom, as in the last epochs.
        """
        images, boxes, labels = self.batch(epoch, [index], closed=closed)
        return images[0], boxes[0], labels[0]

    def batch(self, epoch: int, indices: Sequence[int], *, closed: bool) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """Pictures (B, S, S, 3), boxes and labels of one batch; they depend on the seed, the epoch and `indices` alone.

        Where not all pictures are kept in memory, a mosaic takes its others from the batch, so that each is decoded once,
        as large as it is shown anywhere, and drawn wherever it is needed while the processor's caches hold it.
        """
        size_px = self._geometry.size_px
        images = np.empty((len(indices), size_px, size_px, 3), np.uint8)
        uses: dict[int, list[tuple[int, int]]] = {}
        scenes: list[Scene] = []
        for row, index in enumerate(indices):
            rng = np.random.default_rng((self._seed, epoch, index))
            sources = [index, *self._others(indices, closed=closed, rng=rng)]
            scenes.append(Scene(images[row], len(sources), self._settings, closed=closed, rng=rng))
            for number, source in enumerate(sources):
                uses.setdefault(source, []).append((row, number))
        done: dict[int, Sample] = {}
        for index, places in uses.items():
            source = self._source(index, max(scenes[row].placements[number].zoom for row, number in places))
            for row, number in places:
                scenes[row].draw(number, source, pad_value=self._geometry.pad_value)
                if scenes[row].complete:
                    done[row] = scenes[row].finished()
        return images, [done[row].boxes_xyxy for row in range(len(indices))], [done[row].labels for row in range(len(indices))]

    def _others(self, batch: Sequence[int], *, closed: bool, rng: np.random.Generator) -> list[int]:
        """The other three of a mosaic, or none."""
        if closed or rng.random() >= self._settings.mosaic:
            return []
        near = len(batch) > 1 and len(self._cache) < len(self._images)
        others = rng.integers(0, len(batch) if near else len(self._images), size=3).tolist()
        return [batch[i] for i in others] if near else others

    def _num_that_fit(self, budget_bytes: int) -> int:
        places = [self._geometry.place((image.height, image.width)) for image in self._images]
        return int(np.searchsorted(np.cumsum([p.height * p.width * 3 for p in places]), budget_bytes, side="right"))

    def _source(self, index: int, zoom: float) -> Sample:
        image = self._images[index]
        real = ~image.crowd
        if index < len(self._cache):
            where = self._geometry.place((image.height, image.width))
            scale = np.array([where.scale_x, where.scale_y] * 2, np.float32)
            return Sample(self._cache[index], image.boxes_xyxy[real] * scale, image.labels[real])
        self.reading(index)
        decoded = read_at_least(image.path, zoom * self._geometry.size_px, upright=image.upright)
        scale_xy, origin_xy = (np.array(pair * 2, np.float32) for pair in (decoded.scale_xy, decoded.origin_xy))
        fit = self._geometry.size_px / (max(image.height, image.width) * decoded.scale_xy[0])
        return Sample(decoded.pixels, image.boxes_xyxy[real] * scale_xy + origin_xy, image.labels[real], fit)

    def _decoded(self, image: LabelledImage) -> np.ndarray:
        return self._geometry.resized(read_image(image.path, upright=image.upright))
