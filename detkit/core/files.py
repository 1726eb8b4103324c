"""Files that are either whole or absent: atomic writes, hashes and JSON."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20


def sha256_of_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: readers see the old content or the new, never a part, even after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json_atomically(path: Path, content: Any) -> None:
    """Replace `path` by indented JSON."""
    write_bytes_atomically(path, (json.dumps(content, indent=2, sort_keys=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def sync_folder(folder: Path) -> None:
    """Make renames within `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def os_path_from_bytes(name: bytes) -> Path:
    """The path whose name the file system holds as these bytes."""
    return Path(os.fsdecode(name))
