"""The annotations of a COCO file in blocks; of large files, one half is read by a process of its own."""

import contextlib
import mmap
import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from detkit.core.errors import UserError
from detkit.data.coco_records import Annotation, Columns, numeric_or_objects

# Bytes of annotations decoded at a time.
BLOCK_BYTES = 1 << 18
EXACT_BLOCK = 4096
# Two processes read an annotation list of at least so many bytes.
SHARED_BYTES = 16 << 20
BETWEEN_RECORDS = re.compile(rb"}\s*,\s*(?={)")
Block = list[Any] | list[msgspec.Raw]


@dataclass(frozen=True)
class Stretch:
    """Bytes of a JSON list in a `mapped` file, from `first`, where a record begins, to `end`; the list ends at `last`."""

    mapped: mmap.mmap
    content: memoryview
    first: int
    end: int
    last: int


def whole(mapped: mmap.mmap, raw: msgspec.Raw, path: Path, section: str) -> Stretch:
    """All records of a list. Raises UserError where it is none."""
    content = memoryview(raw)
    first = 0
    while content[first] in b" \t\r\n":
        first += 1
    if content[first] != ord("["):
        raise UserError(f"{path} has no list {section!r}; it is not a COCO instances file")
    return Stretch(mapped, content, first + 1, len(content) - 1, len(content) - 1)


def parted(stretch: Stretch, share: float) -> tuple[Stretch, Stretch] | None:
    """The same in two, the first with `share` of its bytes, cut where one record seems to end and the next to begin.

    None where there is no such place.
    """
    cut = BETWEEN_RECORDS.search(stretch.content, stretch.first + int(share * (stretch.last - stretch.first)))
    if cut is None:
        return None
    return replace(stretch, end=cut.start() + 1), replace(stretch, first=cut.end())


def blocks_of(stretch: Stretch, kind: type[Any] = Annotation) -> Iterator[tuple[Block, int]]:
    """Blocks of decoded records of a `kind`, or of their bytes where a block does not decode as a whole; and where each ends.

    The list is cut where one record seems to end and the next to begin. A cut inside a string or a nested list would
    leave the piece before it open, which does not decode, so a piece that decodes was cut rightly. From one that does
    not, the list is split exactly, to its last record: beyond the end of the stretch.
    """
    content, first, end = stretch.content, stretch.first, stretch.end
    decoder = msgspec.json.Decoder(list[kind])  # pyright: ignore[reportInvalidTypeForm]
    while first < end:
        cut = BETWEEN_RECORDS.search(content, min(first + BLOCK_BYTES, end), end)
        stop = end if cut is None else cut.start() + 1
        try:
            rows = decoder.decode(b"[%b]" % content[first:stop])
        except (msgspec.DecodeError, RecursionError, OverflowError):
            for block in exact_blocks(content[first:]):
                yield block, stretch.last
            return
        # What was decoded need not stay in memory; it can be read from the file again.
        stretch.mapped.madvise(mmap.MADV_DONTNEED)
        yield rows, stop
        first = end if cut is None else cut.end()


def exact_blocks(rest: memoryview) -> Iterator[list[msgspec.Raw]]:
    pieces = split(msgspec.Raw(b"[%b" % rest))
    for start in range(0, len(pieces), EXACT_BLOCK):
        yield pieces[start : start + EXACT_BLOCK]


def split(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """Records of a list, which JSON has found to be one, as bytes of their own."""
    return msgspec.json.decode(raw, type=list[msgspec.Raw])


@contextlib.contextmanager
def read_beside(stretch: Stretch) -> Iterator[Callable[[], Columns | None]]:
    """Columns of a stretch, with ids of pictures for their indices, read by another process meanwhile.

    What is given waits for them when it is called. None where a record of the stretch needs care, or where the process
    ended early: it is then read here, and what is wrong with it is named here. The process is a fork that uses
    neither threads nor a device.
    """
    with tempfile.TemporaryDirectory(prefix="detkit-") as folder:
        process = multiprocessing.get_context("fork").Process(target=save_columns, args=(stretch, Path(folder)), daemon=True)
        process.start()

        def result() -> Columns | None:
            process.join()
            return Columns.load(Path(folder)) if process.exitcode == 0 else None

        try:
            yield result
        finally:
            process.kill()
            process.join()


def save_columns(stretch: Stretch, folder: Path) -> None:
    """What the other process does; it ends with 1 where a record is not plain, or the disk is full."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    columns = Columns()
    for rows, _ in blocks_of(stretch):
        if not all(type(row) is Annotation for row in rows[:1]):
            os._exit(1)
        images = numeric_or_objects([row.image_id for row in rows])  # type: ignore[union-attr]
        if images.dtype == object:
            os._exit(1)
        columns.add(0, rows, images)  # type: ignore[arg-type]
    try:
        columns.save(folder)
    except OSError:
        os._exit(1)


def shared(stretch: Stretch) -> bool:
    """Whether a second process is worth its start, and may be started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return stretch.last >= SHARED_BYTES and cores > 1 and not multiprocessing.current_process().daemon
