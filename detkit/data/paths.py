"""Paths that labels name, held below the data set's root."""

import os
from pathlib import Path


def below(root: Path, folder: Path, name: str) -> Path | None:
    """`folder / name`, or None where the name is absolute or its `..` lead out of `root`.

    Links are followed wherever they lead, as users link large folders into data sets; what they lead to must be a
    regular file to be read.
    """
    if not name or "\0" in name or name.startswith("/"):
        return None
    path = Path(os.path.normpath(folder / name))
    return path if path.is_relative_to(os.path.normpath(root)) else None
