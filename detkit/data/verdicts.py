"""Verdicts on pictures, remembered by path, size and time of the last change."""

import json
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.files import read_json, write_bytes_atomically
from detkit.data.verify import Verdict, verdicts_of

# Raised whenever the same file gets another verdict.
VERSION = 2


class VerdictStore:
    """What was found out about the pictures below one root; a file below `folder` keeps it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._path = folder / f"{sha256(os.fsencode(root.resolve())).hexdigest()[:32]}.json"
        self._known: dict[str, list[Any]] = {}
        try:
            content = read_json(self._path)
            if content["version"] == VERSION:
                self._known = content["pictures"]
        except (OSError, ValueError, KeyError, TypeError):
            self._known = {}

    def look(self, path: str) -> int:
        """The difference hash of a picture that was decoded, or 0."""
        known = self._known.get(path)
        return int(known[3].get("look", 0)) if known is not None else 0

    def verdicts(
        self, paths: Sequence[str], stats: np.ndarray, *, decode: bool, progress: Callable[[int], None] | None = None
    ) -> list[Verdict]:
        """Verdicts in order; `stats` (N, 2) are size in bytes and time of the last change of each file.

        A verdict from a header alone does not serve where decoding is asked for.
        """
        rows: list[Verdict | None] = []
        for path, (size, changed) in zip(paths, stats.tolist(), strict=True):
            known = self._known.get(path)
            usable = known is not None and known[:2] == [size, changed] and (known[2] or not decode)
            rows.append(restored(dict(known[3])) if known is not None and usable else None)
        wanted = [index for index, row in enumerate(rows) if row is None]
        fresh = verdicts_of([Path(paths[index]) for index in wanted], decode=decode, progress=progress)
        for index, verdict in zip(wanted, fresh, strict=True):
            rows[index] = verdict
            self._known[paths[index]] = [*stats[index].tolist(), decode, plain(verdict)]
        if wanted:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            content = {"version": VERSION, "pictures": self._known}
            write_bytes_atomically(self._path, json.dumps(content, separators=(",", ":")).encode())
        return [row for row in rows if row is not None]


def plain(verdict: Verdict) -> dict[str, Any]:
    """Fields that differ from their defaults."""
    return {name: value for name, value in vars(verdict).items() if value or name in ("width", "height", "turned")}


def restored(values: dict[str, Any]) -> Verdict:
    remarks = tuple((kind, what) for kind, what in values.pop("remarks", ()))
    return Verdict(**values, remarks=remarks)
