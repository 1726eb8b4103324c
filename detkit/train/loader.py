"""Batches for training: torch's DataLoader over numpy samples, in an order that depends on the seed and the epoch alone."""

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from detkit.core.errors import UserError
from detkit.data.training import TrainingSamples

# B images, M objects of the fullest image, H W network input.


@dataclass(frozen=True)
class Batch:
    """`images_BHW3` uint8 RGB; `objects_BM4` xyxy px of the network input; `labels_BM` class indices.

    `valid_BM` tells objects from padding; `indices` are the pictures'.
    """

    images_BHW3: Tensor
    objects_BM4: Tensor
    labels_BM: Tensor
    valid_BM: Tensor
    indices: tuple[int, ...]


class EpochOrder(Sampler[int]):
    """One rank's share of an epoch's permutation.

    Every rank draws the same permutation from (seed, epoch). The tail that does not fill a global batch is left for
    another epoch, so all ranks run the same number of steps. With fewer pictures than one batch, pictures repeat.
    """

    def __init__(self, num_samples: int, *, batch: int, rank: int, world_size: int, seed: int) -> None:
        self.num_samples = num_samples
        self.batch = batch
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0
        # Pictures of this rank's share that were trained on before.
        self.done = 0
        self.num_steps = max(1, num_samples // batch)

    def __len__(self) -> int:
        return self.num_steps * self.batch // self.world_size

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.num_samples)
        order = np.resize(order, self.num_steps * self.batch)
        return iter(order[self.rank :: self.world_size][self.done :].tolist())


class EpochSamples(Dataset[Batch]):
    """Batches of the current epoch; workers are started anew each epoch with the epoch's number."""

    def __init__(self, samples: TrainingSamples, *, num_workers: int) -> None:
        self.samples = samples
        self.epoch = 0
        self.closed = False
        # The picture that each worker reads, for the sentence about one that dies.
        self._at = multiprocessing.RawArray("q", [-1] * max(1, num_workers))
        samples.reading = self._note

    def _note(self, index: int) -> None:
        worker = get_worker_info()
        self._at[0 if worker is None else worker.id] = index

    def being_read(self) -> list[str]:
        """File names of the pictures that the workers were last at."""
        return [self.samples.name_of(index) for index in self._at if index >= 0]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Batch:
        """A whole batch, as torch's DataLoader asks for it."""
        return collated(indices, *self.samples.batch(self.epoch, indices, closed=self.closed))


def as_it_is(batch: Any) -> Batch:
    """What `EpochSamples` gives is a batch already."""
    return batch


class TrainLoader:
    """Iterates over one epoch's batches of this rank: `for batch in loader.epoch(3, closed=False)`."""

    def __init__(self, samples: TrainingSamples, *, micro_batch: int, order: EpochOrder, num_workers: int) -> None:
        self._samples = EpochSamples(samples, num_workers=num_workers)
        self._order = order
        self._micro_batch = micro_batch
        self._loader = DataLoader(
            self._samples,
            batch_size=micro_batch,
            sampler=order,
            num_workers=num_workers,
            collate_fn=as_it_is,
            multiprocessing_context="fork" if num_workers else None,
            prefetch_factor=4 if num_workers else None,
            drop_last=False,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def name_of(self, index: int) -> str:
        """File name of a picture of the training set."""
        return self._samples.samples.name_of(index)

    def epoch(self, epoch: int, *, closed: bool, first: int = 0) -> Iterator[Batch]:
        """Batches of `epoch` from its micro-batch `first` on; `closed` turns mosaic and strong zoom off.

        Raises UserError naming the picture that cannot be read, or those that workers were at when one died.
        """
        self._order.epoch, self._order.done = epoch, first * self._micro_batch
        self._samples.epoch = epoch
        self._samples.closed = closed
        try:
            yield from self._loader
        except UserError as error:
            # From a worker it arrives as the text of its traceback, the sentence last.
            sentence = error.what.strip().splitlines()[-1].removeprefix(f"{UserError.__module__}.UserError: ")
            raise UserError(sentence, hint=error.hint or "detkit doctor data") from error
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            names = ", ".join(self._samples.being_read()) or "pictures kept in memory"
            raise UserError(
                f"a loader process died; the processes were at {names}",
                hint="if memory ran out (dmesg says so), lower data.workers or data.cache_mb",
            ) from error


def collated(indices: list[int], images: np.ndarray, boxes: list[np.ndarray], labels: list[np.ndarray]) -> Batch:
    """Pad the objects of pictures (B, S, S, 3) to the fullest."""
    num_objects = max(1, max(len(b) for b in boxes))
    objects_BM4 = np.zeros((len(indices), num_objects, 4), np.float32)
    labels_BM = np.zeros((len(indices), num_objects), np.int64)
    valid_BM = np.zeros((len(indices), num_objects), bool)
    for row, (own_boxes, own_labels) in enumerate(zip(boxes, labels, strict=True)):
        objects_BM4[row, : len(own_boxes)] = own_boxes
        labels_BM[row, : len(own_labels)] = own_labels
        valid_BM[row, : len(own_boxes)] = True
    arrays = (images, objects_BM4, labels_BM, valid_BM)
    return Batch(*(torch.from_numpy(a) for a in arrays), indices=tuple(indices))
