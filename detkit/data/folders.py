"""Finding pictures and label files in folders."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from detkit.core.errors import UserError
from detkit.data.content import content_of, num_bytes

SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff")
# Largest label file of one picture; a larger one is something else.
MOST_BYTES = 64 << 20


def pictures_below(folder: Path) -> list[Path]:
    """Pictures in a folder and its folders, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def pictures_by_stem(folder: Path) -> dict[str, Path]:
    """Pictures of a folder by name without suffix. Raises UserError where there is no such folder."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}", hint="--set data.images=FOLDER_BELOW_ROOT")
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES}


def part_folder(base: Path, part: str) -> Path:
    """The folder of a part: `base/part`, or `base` itself for `.`. Raises UserError naming the folders there are."""
    folder = base if part == "." else base / part
    if folder.is_dir():
        return folder
    there = sorted(path.name for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    raise UserError(f"no folder {folder}", hint=f"folders there: {', '.join(there) or 'none'}; '.' is the folder itself")


def text_of(path: Path) -> str:
    """A small text file, UTF-8 with or without byte order mark. Raises UserError where it is anything else."""
    try:
        if num_bytes(path) > MOST_BYTES:
            raise UserError(f"{path} has {num_bytes(path) >> 20} MiB, more than a label file of one picture can")
        text = content_of(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8: {error}") from error
    except (OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if "\0" in text:
        raise UserError(f"{path} is not text: it has NUL bytes")
    return text


def first_few(paths: Iterator[Path], most: int = 2000) -> list[Path]:
    """At most `most` paths of a listing that may be endless for our purpose."""
    return list(itertools.islice(paths, most))
