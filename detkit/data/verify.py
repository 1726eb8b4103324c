"""Whether pictures can be decoded whole and are what their labels say; verdicts are remembered until a file changes."""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from detkit.core.console import say
from detkit.data.content import is_regular, opened
from detkit.data.findings import Finding
from detkit.data.images import ALPHA, UNREADABLE, WIDE_GREY

ORIENTATION = 0x0112
# Pictures from which on processes are worth their start, and how many a process takes at a time.
MANY = 512
CHUNK = 32
SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".mpo"),
    "PNG": (".png",),
    "BMP": (".bmp", ".dib"),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "GIF": (".gif",),
}


@dataclass(frozen=True)
class Verdict:
    """What a file holds: raw size in px and whether EXIF turns it by a quarter; `error` empty, or why it is unusable.

    `remarks` are (kind, sentence) pairs that do not keep the picture from being used. `look` is a difference hash of
    64 bits (`look_of`) that pictures of nearly the same scene share but for a few bits; 0 where nothing was decoded.
    """

    width: int
    height: int
    turned: bool
    error: str = ""
    remarks: tuple[tuple[str, str], ...] = ()
    too_large: bool = False
    look: int = 0


def verdict_of(path: Path, *, decode: bool = True) -> Verdict:
    """Look at one picture: its header, and with `decode` every row of it, at an eighth of the size where JPEG allows."""
    look = 0
    try:
        if not is_regular(path):
            return Verdict(0, 0, False, "not a regular file")
        with opened(path) as file, Image.open(file) as picture:
            width, height = picture.size
            turned = picture.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
            remarks = remarks_on(picture, path)
            if decode:
                picture.draft("RGB", (width // 8, height // 8))
                picture.load()
                look = look_of(picture)
    except Image.DecompressionBombError as error:
        return Verdict(0, 0, False, str(error), too_large=True)
    except UNREADABLE as error:
        return Verdict(0, 0, False, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return Verdict(width, height, turned, remarks=remarks, look=look)


def look_of(picture: Image.Image) -> int:
    """64 bits: whether each of 8 x 8 places is darker than its right neighbour, from a grey picture of 9 x 8 px."""
    if picture.mode in WIDE_GREY:
        picture = Image.fromarray((np.clip(np.asarray(picture, np.int64), 0, 65535) >> 8).astype(np.uint8))
    # A box filter over whole blocks first: the small picture then costs little.
    block = max(1, min(picture.size) // 64)
    if picture.mode == "P":
        picture = picture.convert("RGB")
    grey = np.asarray(picture.reduce(block).convert("L").resize((9, 8), Image.Resampling.BOX), np.int16)
    return int.from_bytes(np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes(), "big")


def remarks_on(picture: Image.Image, path: Path) -> tuple[tuple[str, str], ...]:
    """Properties of an opened picture that a user should know of."""
    found = []
    expected = SUFFIXES.get(picture.format or "")
    if expected and path.suffix.lower() not in expected:
        found.append(("wrong suffix", f"{path.suffix or 'no suffix'}, but the content is {picture.format}"))
    if picture.mode in ALPHA or "transparency" in picture.info:
        found.append(("transparent", f"mode {picture.mode} with transparency"))
    elif picture.mode not in ("RGB", "L") and picture.mode not in WIDE_GREY:
        found.append(("converted colours", f"mode {picture.mode}"))
    elif picture.mode != "RGB":
        found.append(("converted colours", "grey" if picture.mode == "L" else f"16-bit grey ({picture.mode})"))
    return tuple(found)


def placed(path: Path, verdict: Verdict, claimed_wh: tuple[int, int]) -> tuple[tuple[int, int], bool, list[Finding]]:
    """Size to use, whether the EXIF orientation applies, and findings; size (0, 0) where the picture is unusable.

    The rule: a picture is turned upright, unless its labels give the unturned size, which shows that they were drawn
    on the unturned view. Labels without a size are taken to be drawn on the upright view, as viewers show it.
    """
    if verdict.error:
        kind = "picture too large" if verdict.too_large else "unreadable picture"
        return (0, 0), True, [Finding(kind, str(path), verdict.error)]
    remarks = [Finding(kind, str(path), what) for kind, what in verdict.remarks]
    raw = (verdict.width, verdict.height)
    upright = (raw[1], raw[0]) if verdict.turned else raw
    if claimed_wh in ((0, 0), upright):
        return upright, True, remarks
    if claimed_wh == raw:
        what = f"the labels say {raw[0]}x{raw[1]} px, which is the picture before its EXIF turn"
        return raw, False, [*remarks, Finding("labelled before EXIF turn", str(path), what)]
    swapped = "; width and height are swapped" if claimed_wh == (upright[1], upright[0]) else ""
    what = f"the labels say {claimed_wh[0]}x{claimed_wh[1]} px, the picture has {upright[0]}x{upright[1]} px{swapped}"
    return (0, 0), True, [*remarks, Finding("wrong size", str(path), what)]


def verdicts_of(paths: Sequence[Path], *, decode: bool = True, progress: Callable[[int], None] | None = None) -> list[Verdict]:
    """Verdicts in order, from as many processes as cores where there are many pictures, else from threads.

    Threads wait for the interpreter's lock between decodes, which keeps two cores three quarters busy.
    """
    found = []
    pool = processes() if len(paths) >= MANY else ThreadPoolExecutor()
    with warnings.catch_warnings():
        # Pillow warns of large pictures at half the size that it refuses.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            for verdict in pool.map(partial(verdict_of, decode=decode), paths, chunksize=CHUNK):
                found.append(verdict)
                if progress is not None:
                    progress(len(found))
        except BrokenProcessPool:
            # A process was killed: for want of memory, say. What it had decoded but not told is decoded again.
            say("a process that decodes pictures was killed (out of memory?); threads decode the rest")
            with ThreadPoolExecutor() as threads:
                found += threads.map(partial(verdict_of, decode=decode), paths[len(found) :])
        finally:
            # On Ctrl-C too, without the pictures that are still to come.
            pool.shutdown(cancel_futures=True)
    return found


def processes() -> Executor:
    """A pool of processes that leave Ctrl-C to this one; of threads where processes may not be started or would not help."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if cores == 1 or multiprocessing.current_process().daemon:
        return ThreadPoolExecutor()
    return ProcessPoolExecutor(
        cores, multiprocessing.get_context("fork"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    )
