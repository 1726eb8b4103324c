"""The index of one part: readers, checks and verdicts once, then memory-mapped columns until something changes."""

import fcntl
import functools
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.console import Ticker
from detkit.core.errors import UserError
from detkit.core.files import read_json, write_json_atomically
from detkit.data.check import checked_objects
from detkit.data.content import span_of
from detkit.data.findings import Finding
from detkit.data.labels import Labels
from detkit.data.masks import mask_faults
from detkit.data.table import COLUMNS, ImageTable, strings
from detkit.data.verdicts import VerdictStore
from detkit.data.verify import placed
from detkit.recipe.schema import DataSettings

# Raised whenever the same labels give other columns.
VERSION = 2
META = "index.json"
# Settings that change what the columns hold.
MATTERS = ("images", "labels", "ignore_ids", "classes", "on_bad", "outside_tolerance_px", "verify")
STAT_COLUMNS = ("listed_bytes", "listed_starts", "listed_stat")


@dataclass(frozen=True)
class Index:
    """Usable pictures of a part, class names, original category ids, everything found, and all columns."""

    table: ImageTable
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    findings: tuple[Finding, ...]
    columns: dict[str, np.ndarray]

    @property
    def num_listed(self) -> int:
        return max(0, len(self.columns["listed_starts"]) - 1)

    @functools.cached_property
    def listed(self) -> tuple[Path, ...]:
        """Paths of all pictures that the labels list, usable or not."""
        return tuple(Path(os.fsdecode(path)) for path in listed_paths(self.columns))


def indexed(
    read: Callable[[], Labels], root: Path, files: list[Path], pictures: list[Path], *, parts: tuple[str, ...], settings: DataSettings
) -> Index:
    """The index of `parts`, from the cache where labels, settings and pictures are those that it was made from.

    `files` are the label files, and `pictures` the names (of shards, where the pictures lie in such), that decide what
    `read` returns.
    """
    folder = cache_folder() / "index" / key_of(root, files, pictures, parts=parts, settings=settings)
    cached = opened(folder, settings)
    if cached is not None:
        return cached
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Ranks of one job come here together: one builds, the others wait and find its work.
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cached = opened(folder, settings)
        if cached is not None:
            return cached
        with tempfile.TemporaryDirectory(prefix=".index-", dir=folder.parent) as staging:
            made = Path(staging) / "index"
            write_index(made, *built(read(), root, settings))
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
        index = opened(folder, settings, check_pictures=False)
    assert index is not None
    return index


def write_index(folder: Path, columns: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    folder.mkdir()
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    write_json_atomically(folder / META, meta)


def cache_folder() -> Path:
    """Where detkit keeps what it can make again: $XDG_CACHE_HOME/detkit, by default ~/.cache/detkit."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "detkit"


def key_of(root: Path, files: list[Path], pictures: list[Path], *, parts: tuple[str, ...], settings: DataSettings) -> str:
    """Names an index by everything that decides its content, except the pictures, which are compared when it is opened."""
    facts: dict[str, Any] = {"version": VERSION, "root": str(root.resolve()), "format": settings.format, "parts": parts}
    facts |= {name: getattr(settings, name) for name in MATTERS}
    digest = hashlib.sha256(json.dumps(facts).encode())
    digest.update(b"\0".join(os.fsencode(path) for path in pictures))
    if settings.format == "shards":
        digest.update(stats([str(path) for path in pictures]).tobytes())
    for path in files:
        digest.update(os.fsencode(path))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def opened(folder: Path, settings: DataSettings, *, check_pictures: bool = True) -> Index | None:
    """The index in `folder`; None where there is none, where it is damaged or where a picture has changed."""
    try:
        meta = read_json(folder / META)
        columns = {name: mapped(folder / f"{name}.npy") for name in (*COLUMNS, *STAT_COLUMNS)}
    except (OSError, ValueError, EOFError):
        return None
    if {name: list(column.shape) for name, column in columns.items()} != meta["shapes"]:
        return None
    # Size and change of every shard are in the name of the folder.
    compared = check_pictures and settings.verify != "off" and settings.format != "shards"
    if compared and not np.array_equal(stats(list(map(os.fsdecode, listed_paths(columns)))), columns["listed_stat"]):
        return None
    return Index(
        ImageTable({name: columns[name] for name in COLUMNS}),
        tuple(meta["classes"]),
        tuple(meta["category_ids"]),
        tuple(Finding(*row) for row in meta["findings"]),
        columns,
    )


def mapped(path: Path) -> np.ndarray:
    """A column without reading it; empty ones cannot be mapped and are read."""
    column = np.load(path, mmap_mode="r", allow_pickle=False)
    return column if column.size else np.array(column)


def listed_paths(columns: dict[str, np.ndarray]) -> list[bytes]:
    content = columns["listed_bytes"].tobytes()
    return [content[a:b] for a, b in itertools.pairwise(columns["listed_starts"].tolist())]


def path_column(paths: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """A column of paths as the file system writes them."""
    joined = "".join(paths)
    if not joined.isascii():
        return strings(os.fsencode(path) for path in paths)
    starts = np.zeros(len(paths) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, paths), np.int64, len(paths)), out=starts[1:])
    return np.frombuffer(joined.encode(), np.uint8), starts


def stats(paths: Sequence[str]) -> np.ndarray:
    """Size in bytes and instant of the last change in ns, (N, 2), of the shard for members; -1 where there is no file."""
    found = np.full((len(paths), 2), -1, np.int64)
    shards: dict[str, int] = {}
    for row, path in enumerate(paths):
        span = span_of(path)
        try:
            if span is None:
                stat = os.stat(path)  # noqa: PTH116  hundreds of thousands of Path objects would cost more than the calls
                found[row] = stat.st_size, stat.st_mtime_ns
                continue
            if span[0] not in shards:
                shards[span[0]] = Path(span[0]).stat().st_mtime_ns
        except OSError:
            continue
        found[row] = span[2], shards[span[0]]
    return found


def built(labels: Labels, root: Path, settings: DataSettings) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Columns and facts of freshly read labels; pictures that cannot be used are left out."""
    seen = stats(labels.paths) if settings.verify != "off" else np.zeros((0, 2), np.int64)
    upright = np.ones(len(labels.paths), bool)
    if settings.verify != "off":
        upright = verified(labels, seen, root, decode=settings.verify == "decode")
    labels.sizes_wh = sizes = np.asarray(labels.sizes_wh, np.int32).reshape(-1, 2)
    chosen = chosen_categories(labels, settings)
    objects = checked_objects(labels, settings, chosen)
    replaced = mask_faults(labels, objects.rows) if settings.verify == "decode" else {}
    rows = np.flatnonzero(sizes[:, 0] > 0)
    every = len(rows) == len(sizes)
    place = objects.image if every else np.searchsorted(rows, objects.image)
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.bincount(place, minlength=len(rows)), out=starts[1:])
    listed = path_column(labels.paths)
    usable = listed if every else path_column([labels.paths[row] for row in rows.tolist()])
    columns: dict[str, np.ndarray] = dict(zip(("path_bytes", "path_starts"), usable, strict=True))
    columns |= id_columns(labels.image_ids if every else [labels.image_ids[row] for row in rows.tolist()])
    semantic = strings([os.fsencode(labels.semantic[row] or "") for row in rows.tolist()] if any(labels.semantic) else [])
    columns |= dict(zip(("semantic_bytes", "semantic_starts"), semantic, strict=True))
    columns |= {"sizes_wh": sizes[rows], "upright": upright[rows], "object_starts": starts}
    columns |= {"boxes": objects.boxes, "labels": objects.labels, "crowd": objects.crowd, "areas_px": objects.areas_px}
    columns |= dict(zip(("mask_bytes", "mask_starts"), mask_columns(labels, objects.rows, replaced), strict=True))
    columns |= dict(zip(("listed_bytes", "listed_starts"), listed, strict=True))
    columns["listed_stat"] = seen
    numeric = all(isinstance(category, int) for category in chosen)
    meta = {
        "classes": [labels.categories[category] for category in chosen],
        "category_ids": list(chosen) if numeric else list(range(1, len(chosen) + 1)),
        "findings": [astuple(finding) for finding in labels.findings],
        "shapes": {name: list(column.shape) for name, column in columns.items()},
    }
    return columns, meta


def mask_columns(labels: Labels, rows: np.ndarray, replaced: dict[int, bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The masks of the objects `rows`, some `replaced`."""
    if not len(labels.mask) or not len(rows):
        return np.zeros(0, np.uint8), np.zeros(0, np.int64)
    return strings(replaced[row] if row in replaced else labels.mask[row] for row in rows.tolist())


def id_columns(ids: list[Any]) -> dict[str, np.ndarray]:
    """Picture ids as numbers, or as strings where one is not a number of 64 bits."""
    if set(map(type, ids)) <= {int} and min(ids, default=0) >= -(2**63) and max(ids, default=0) < 2**63:
        empty = strings([])
        return {"id_numbers": np.array(ids, np.int64), "id_bytes": empty[0], "id_starts": empty[1]}
    content, starts = strings(str(i).encode() for i in ids)
    return {"id_numbers": np.zeros(0, np.int64), "id_bytes": content, "id_starts": starts}


def verified(labels: Labels, seen: np.ndarray, root: Path, *, decode: bool) -> np.ndarray:
    """Whether EXIF applies to each picture; sizes of unusable ones become (0, 0), and what is found is noted."""
    store = VerdictStore(cache_folder() / "pictures", root)
    ticker = Ticker("checking pictures", total=len(labels.paths))
    verdicts = store.verdicts(labels.paths, seen, decode=decode, progress=ticker.update)
    ticker.close()
    upright = np.ones(len(labels.paths), bool)
    for row, verdict in enumerate(verdicts):
        path = Path(labels.paths[row])
        if seen[row, 0] < 0:
            labels.found("missing picture", str(path), "listed, but there is no such picture")
            labels.sizes_wh[row] = (0, 0)
            continue
        labels.sizes_wh[row], upright[row], found = placed(path, verdict, (int(labels.sizes_wh[row][0]), int(labels.sizes_wh[row][1])))
        labels.findings += found
    return upright


def chosen_categories(labels: Labels, settings: DataSettings) -> list[Hashable]:
    """Original category keys in label order. Raises UserError where `data.classes` names one that is not there."""
    if not settings.classes:
        return list(labels.categories)
    keys = {name: key for key, name in labels.categories.items()}
    unknown = [name for name in settings.classes if name not in keys]
    if unknown:
        raise UserError(f"data.classes names {unknown[0]!r}; the annotations have {sorted(keys)}")
    return [keys[name] for name in settings.classes]
