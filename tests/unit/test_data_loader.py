"""The training loader: shares of ranks, and what is said of unreadable pictures and dead workers."""

import os
import signal
from pathlib import Path

import pytest

from detkit.core.errors import UserError
from detkit.data.training import TrainingSamples
from detkit.train.loader import EpochOrder, TrainLoader
from tests.unit.test_data_augment import training_samples

pytestmark = pytest.mark.slow


def loader(samples: TrainingSamples, *, num_workers: int) -> TrainLoader:
    order = EpochOrder(len(samples), batch=2, rank=0, world_size=1, seed=0)
    return TrainLoader(samples, micro_batch=2, order=order, num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_picture_that_turned_unreadable_is_named(tmp_path: Path, num_workers: int) -> None:
    samples = training_samples(tmp_path, cache_mb=0)
    (tmp_path / "3.png").write_bytes(b"gone")
    with pytest.raises(UserError, match=r"3\.png cannot be read as a picture") as caught:
        list(loader(samples, num_workers=num_workers).epoch(0, closed=True))
    assert "\n" not in caught.value.what


def test_a_dead_worker_is_named_with_the_picture_it_was_at(tmp_path: Path) -> None:
    samples = training_samples(tmp_path, cache_mb=0)
    train_loader = loader(samples, num_workers=1)
    note = samples.reading

    def die_at_4(index: int) -> None:
        note(index)
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    samples.reading = die_at_4
    with pytest.raises(UserError, match=r"a loader process died; the processes were at 4\.png"):
        list(train_loader.epoch(0, closed=True))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("num_samples", [30, 31, 59, 7])
def test_ranks_share_an_epoch_without_gaps_or_repeats(num_samples: int, world_size: int) -> None:
    batch = 15 if world_size in (3, 5, 1) else 16
    shares = []
    for rank in range(world_size):
        order = EpochOrder(num_samples, batch=batch, rank=rank, world_size=world_size, seed=3)
        order.epoch = 2
        shares.append(list(order))
    together = sorted(index for share in shares for index in share)
    assert len({len(share) for share in shares}) == 1, "every rank runs the same number of steps"
    if num_samples >= batch:
        assert len(together) == len(set(together)) == num_samples // batch * batch
    else:
        assert set(together) == set(range(num_samples)), "with fewer pictures than a batch, they repeat"


@pytest.mark.slow
@pytest.mark.parametrize("cache_mb", [0, 64])
def test_batches_do_not_depend_on_the_number_of_workers(tmp_path: Path, cache_mb: int) -> None:
    runs = [
        [
            batch.images_BHW3.numpy().tobytes()
            for batch in loader(training_samples(tmp_path, cache_mb=cache_mb), num_workers=n).epoch(1, closed=False)
        ]
        for n in (0, 1, 2)
    ]
    assert len(runs[0]) == 3 and runs[0] == runs[1] == runs[2]
