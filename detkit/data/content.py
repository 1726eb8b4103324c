"""Read pictures and label files, which may lie inside a tar shard.

A file inside a shard is named SHARD.tar/OFFSET+LENGTH/MEMBER: where its bytes begin in the shard, how many there are, and
its name there. Such a path needs no list of members to be read, so any process opens any picture at once.
"""

import os
import re
import stat
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from detkit.core.files import sha256_of_file

# A member that is larger is no picture; it would be read into memory whole.
MOST_BYTES = 1 << 30
SPAN = re.compile(r"(.+?\.tar)/(\d{1,18})\+(\d{1,18})/(.+)", re.DOTALL | re.IGNORECASE)


def member_path(shard: Path, offset: int, length: int, name: str) -> str:
    """The path of a member whose `length` bytes begin at byte `offset` of the shard."""
    return f"{shard}/{offset}+{length}/{name}"


def span_of(path: Path | str) -> tuple[str, int, int] | None:
    """Shard, offset and length in bytes of a path inside a shard; None for an ordinary file."""
    text = os.fspath(path)
    # Nearly every path is an ordinary one, and this is asked for every picture.
    if ".tar/" not in text.lower():
        return None
    match = SPAN.fullmatch(text)
    return (match[1], int(match[2]), int(match[3])) if match else None


def content_of(path: Path) -> bytes:
    """All bytes of a file. Raises OSError where it cannot be read, EOFError where its shard ends before it does."""
    span = span_of(path)
    if span is not None and span[2] > MOST_BYTES:
        raise OSError(f"it has {span[2] >> 20} MiB, more than a picture in a shard may have")
    # Unbuffered: one call of the system instead of three.
    with (path if span is None else Path(span[0])).open("rb", buffering=0) as file:
        if span is None:
            return file.readall()
        content = os.pread(file.fileno(), span[2], span[1])
    if len(content) != span[2]:
        raise EOFError(f"its shard has {len(content)} of its {span[2]} bytes")
    return content


def opened(path: Path) -> BinaryIO:
    """A file to read from its beginning. Raises as `content_of` does."""
    return path.open("rb") if span_of(path) is None else BytesIO(content_of(path))


def is_there(path: Path) -> bool:
    """Whether there is a regular file of this name."""
    span = span_of(path)
    return path.is_file() if span is None else Path(span[0]).is_file()


def is_regular(path: Path) -> bool:
    """Whether it is a regular file: a device or a pipe might never end. Raises OSError where there is none."""
    span = span_of(path)
    return stat.S_ISREG((path if span is None else Path(span[0])).stat().st_mode)


def num_bytes(path: Path) -> int:
    """Size of a file. Raises OSError where there is none."""
    span = span_of(path)
    return path.stat().st_size if span is None else span[2]


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a picture or label file."""
    return sha256_of_file(path) if span_of(path) is None else sha256(content_of(path)).hexdigest()
