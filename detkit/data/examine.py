"""Everything `detkit doctor data` says of a data set: faults, copies, balance, sizes."""

import itertools
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detkit.data.content import num_bytes, sha256_of
from detkit.data.dataset import load_index, located
from detkit.data.findings import Finding, errors_of, summary
from detkit.data.folders import SUFFIXES
from detkit.data.formats import parts_found
from detkit.data.index import Index, cache_folder
from detkit.data.png_masks import IGNORED, mask_ids
from detkit.data.verdicts import VerdictStore
from detkit.recipe.schema import DataSettings

# Looks that differ in at most this many of 64 bits are near copies.
NEAR_BITS = 3
# A look with fewer set or unset bits is of a flat picture, which resembles every other flat one.
FLAT_BITS = 8
# Pairs compared at a time.
PAIRS = 1 << 22
INPUT_SIZES_PX = (320, 416, 512, 640, 768, 896, 1024, 1280)
# An object whose shorter side is below this at the input is hard to find at stride 8.
SEEN_PX = 8.0
SEEN_SHARE = 0.98
SIDES_PX = (0, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Examined:
    """Indices of the parts, by name, and all findings without repetition."""

    settings: DataSettings
    root: Path
    parts: dict[str, Index]
    findings: list[Finding]

    @property
    def has_errors(self) -> bool:
        return bool(errors_of(self.findings))


def examined(settings: DataSettings, parts: dict[str, tuple[str, ...]] | None = None) -> Examined:
    """Look at every picture and label of the `parts` (name to what data.train would hold); those of the root where None."""
    settings, root = located(settings.model_copy(update={"verify": "decode"}))
    guessed = parts is None
    wanted = parts_found(root, settings) if parts is None else parts
    indices = {name: load_index(settings, names) for name, names in wanted.items()}
    found = [finding for index in indices.values() for finding in index.findings]
    found += vanishing(indices, settings)
    found += copies(indices, root, guessed=guessed)
    if guessed:
        found += not_listed(indices, named={finding.place for finding in found})
    return Examined(settings, root, indices, list(dict.fromkeys(found)))


def input_scale(index: Index, size_px: int) -> np.ndarray:
    """Factor (M,) from px of the picture to px of a network input of side `size_px`, for each object."""
    longest = index.table.sizes_wh().max(1, initial=1)
    return np.repeat(size_px / longest, index.table.num_objects())


def shorter_sides(index: Index) -> np.ndarray:
    """Shorter side (M,) of each box, px of its picture."""
    boxes = index.table.columns["boxes"]
    return np.minimum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])


def vanishing(parts: dict[str, Index], settings: DataSettings) -> list[Finding]:
    """Objects that are smaller than data.augment.min_box_px at the network's input."""
    found = []
    for name, index in parts.items():
        small = shorter_sides(index) * input_scale(index, settings.image_size_px) < settings.augment.min_box_px
        owners = np.repeat(np.arange(len(index.table)), index.table.num_objects())[small]
        for row, count in zip(*np.unique(owners, return_counts=True), strict=True):
            what = f"{count} objects are below {settings.augment.min_box_px:g} px at {settings.image_size_px} px"
            found.append(Finding("vanishes at this size", f"{name}: {index.table[int(row)].path}", what))
    return found


def not_listed(parts: dict[str, Index], named: set[str]) -> list[Finding]:
    """Pictures that lie beside listed ones, are in no part, usable or not, and were not `named` already."""
    listed: dict[Path, set[str]] = defaultdict(set)
    for index in parts.values():
        for path in index.listed:
            listed[path.parent].add(path.name)
    what = "it lies beside listed pictures, and no label file lists it"
    found = []
    for folder in sorted(filter(Path.is_dir, listed)):
        # Names, since a folder may hold a million, nearly all of which are listed.
        others = sorted({entry.name for entry in os.scandir(folder)} - listed[folder])
        beside = [folder / name for name in others if Path(name).suffix.lower() in SUFFIXES]
        found += [Finding("picture not listed", str(path), what) for path in beside if str(path) not in named]
    return found


def copies(parts: dict[str, Index], root: Path, *, guessed: bool) -> list[Finding]:
    """Pictures that are there twice: the same file content, or nearly the same look in two parts."""
    owners: dict[Path, str] = {}
    for name, index in parts.items():
        for path in index.table.paths():
            owners.setdefault(path, name)
    found = listed_twice(parts, guessed=guessed)
    store = VerdictStore(cache_folder() / "pictures", root)
    looks = {path: store.look(str(path)) for path in owners}
    same = same_content(looks)
    for first, *others in same:
        for other in others:
            kind = "copy in one part" if owners[first] == owners[other] else "in two parts"
            found.append(Finding(kind, str(other), f"the same content as {first} ({owners[first]})"))
    known = {path for group in same for path in group[1:]}
    return found + near_copies({path: part for path, part in owners.items() if path not in known}, looks)


def listed_twice(parts: dict[str, Index], *, guessed: bool) -> list[Finding]:
    """The same file in two parts. Where parts were `guessed`, one wholly inside another is other labels of the same."""
    pictures = {name: set(index.table.paths()) for name, index in parts.items()}
    found = []
    for one, other in itertools.combinations(parts, 2):
        common = pictures[one] & pictures[other]
        if not (guessed and len(common) == min(len(pictures[one]), len(pictures[other]))):
            found += [Finding("in two parts", str(path), f"in {one} and in {other}") for path in sorted(common)]
    return found


def same_content(looks: dict[Path, int]) -> list[list[Path]]:
    """Groups of files with the same content; only files of the same size and look are read."""
    groups: dict[Any, list[Path]] = defaultdict(list)
    for path, look in looks.items():
        groups[num_bytes(path), look].append(path)
    by_content: dict[Any, list[Path]] = defaultdict(list)
    for group in groups.values():
        for path in group if len(group) > 1 else []:
            by_content[sha256_of(path)].append(path)
    return [group for group in by_content.values() if len(group) > 1]


def near_copies(owners: dict[Path, str], looks_of: dict[Path, int]) -> list[Finding]:
    """Pictures of different parts whose looks differ in at most NEAR_BITS bits."""
    by_part: dict[str, list[Path]] = defaultdict(list)
    for path, part in owners.items():
        by_part[part].append(path)
    looks = {part: np.array([looks_of[p] for p in paths], np.uint64) for part, paths in by_part.items()}
    found = []
    names = list(by_part)
    for number, part in enumerate(names):
        for other in names[number + 1 :]:
            for a, b in near_pairs(looks[part], looks[other]):
                what = f"looks like {by_part[part][a]} ({part})"
                found.append(Finding("near copy in two parts", f"{by_part[other][b]}", what))
    return found


def near_pairs(one: np.ndarray, other: np.ndarray) -> list[tuple[int, int]]:
    """Indices of pairs of looks (uint64) that are near, without flat ones."""
    rows = [np.flatnonzero(np.abs(ones(looks) - 32) <= 32 - FLAT_BITS) for looks in (one, other)]
    found = []
    step = max(1, PAIRS // max(1, len(rows[1])))
    for start in range(0, len(rows[0]), step):
        part = rows[0][start : start + step]
        near = ones(one[part][:, None] ^ other[rows[1]][None]) <= NEAR_BITS
        found += [(int(part[a]), int(rows[1][b])) for a, b in zip(*np.nonzero(near), strict=True)]
    return found


def ones(values: np.ndarray) -> np.ndarray:
    """Number of set bits of uint64 values."""
    return np.bitwise_count(values).astype(np.int16)


def report(data: Examined) -> dict[str, Any]:
    """Plain values of everything but the pictures."""
    return {
        "format": data.settings.format,
        "root": str(data.root),
        "image_size_px": data.settings.image_size_px,
        "parts": {name: part_facts(index) for name, index in data.parts.items()},
        "mask_shares": mask_shares(data.parts),
        "sides_px": side_histogram(data.parts, data.settings.image_size_px),
        "input_sizes": input_sizes(data.parts),
        "findings": summary(data.findings),
        "num_errors": len(errors_of(data.findings)),
    }


def part_facts(index: Index) -> dict[str, Any]:
    """Counts of pictures, objects and classes."""
    counts = np.bincount(index.table.columns["labels"], minlength=len(index.classes))
    return {
        "num_listed": index.num_listed,
        "num_pictures": len(index.table),
        "num_objects": int(counts.sum()),
        "num_crowds": int(index.table.columns["crowd"].sum()),
        "num_background": int((index.table.num_objects() == 0).sum()),
        "classes": dict(zip(index.classes, counts.tolist(), strict=True)),
    }


def mask_shares(parts: dict[str, Index], most: int = 200) -> dict[str, dict[str, float]]:
    """Share of the labelled pixels of each id in the masks of each part, from up to `most` evenly spread masks."""
    shares: dict[str, dict[str, float]] = {}
    for name, index in parts.items():
        chosen = np.unique(np.linspace(0, len(index.table) - 1, min(most, len(index.table))).round().astype(int))
        paths = [path for i in chosen.tolist() if (path := index.table[i].semantic) is not None]
        counts = sum((np.bincount(np.clip(mask_ids(path), 0, 255).ravel(), minlength=256) for path in paths), np.zeros(256, np.int64))
        counts[IGNORED] = 0
        if counts.sum():
            shares[name] = {str(i): float(counts[i] / counts.sum()) for i in np.flatnonzero(counts).tolist()}
    return shares


def side_histogram(parts: dict[str, Index], size_px: int) -> list[dict[str, Any]]:
    """Objects of all parts by their shorter side at the network's input, px; the last bin has no end."""
    scaled = [shorter_sides(index) * input_scale(index, size_px) for index in parts.values()]
    sides = np.concatenate([*scaled, np.zeros(0)])
    counts = np.histogram(sides, [*SIDES_PX, np.inf])[0].tolist()
    ends = [*SIDES_PX[1:], None]
    return [{"from_px": a, "to_px": b, "count": c} for a, b, c in zip(SIDES_PX, ends, counts, strict=True) if c]


def input_sizes(parts: dict[str, Index]) -> dict[str, Any]:
    """Share of objects whose shorter side is at least SEEN_PX at several input sizes, and the smallest that shows most."""
    shares: dict[int, float] = {}
    total = sum(len(index.table.columns["labels"]) for index in parts.values())
    for size in INPUT_SIZES_PX:
        seen = sum(int((shorter_sides(index) * input_scale(index, size) >= SEEN_PX).sum()) for index in parts.values())
        shares[size] = seen / total if total else 0.0
    enough = next((size for size, share in shares.items() if share >= SEEN_SHARE), INPUT_SIZES_PX[-1])
    return {"at_least_px": SEEN_PX, "share": shares, "suggested_px": enough if total else None}
