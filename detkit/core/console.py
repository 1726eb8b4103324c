"""What detkit says while it works: to stderr, from the first rank only."""

import os
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PLAIN_LINE_EVERY_S = 10.0


def speaks() -> bool:
    """Whether this process may speak: the first rank of a job, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def say(message: str) -> None:
    """Print a sentence to stderr."""
    if speaks():
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(message)


class Ticker:
    """Progress with remaining time: a bar on a terminal, elsewhere one plain line every ten seconds."""

    def __init__(self, title: str, *, total: int, done: int = 0) -> None:
        self._title = title
        self._total = total
        self._first = done
        self._began = self._spoke = time.monotonic()
        self._bar: Progress | None = None
        if speaks() and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
            self._bar.add_task(title, total=total, completed=done)
            self._bar.start()

    def update(self, done: int, note: str = "") -> None:
        """Report that `done` of the total are done."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, description=f"{self._title}  {note}")
            return
        now = time.monotonic()
        if now - self._spoke >= PLAIN_LINE_EVERY_S and done > self._first:
            self._spoke = now
            remaining_s = (now - self._began) / (done - self._first) * (self._total - done)
            say(f"{self._title}  {done}/{self._total}  {note}  about {duration(remaining_s)} left")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


def duration(seconds: float) -> str:
    """`75` as `1 min 15 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
