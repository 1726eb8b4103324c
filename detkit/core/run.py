"""The run directory: where it is, who may write to it, and which one a command means."""

import contextlib
import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from detkit.core.errors import UserError
from detkit.core.files import read_json, write_bytes_atomically, write_json_atomically

SCHEMA_VERSION = 1
RUN_FILE = "run.json"
RECIPE_FILE = "recipe.yaml"
CURRENT = Path(".detkit") / "current"


class Run:
    """A run directory that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        card = read_json(self.path / RUN_FILE)
        if card["schema_version"] != SCHEMA_VERSION:
            raise UserError(
                f"{path} has schema version {card['schema_version']}, this detkit reads {SCHEMA_VERSION}",
                hint="use the detkit version that made it, or train anew",
            )
        self.id: str = card["id"]
        self.created_at: str = card["created_at"]

    @property
    def recipe_path(self) -> Path:
        return self.path / RECIPE_FILE

    def folder(self, name: str) -> Path:
        """Folder of a stage below the run; it need not exist."""
        return self.path / name

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only writer. Raises UserError naming the process that already is; the kernel frees it if we die."""
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise UserError(
                    f"{self.path} is being written by {holder}", hint="wait for it to end, or stop it, and try again"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield


def create_run(path: Path, recipe_text: str) -> Run:
    """Make a run directory holding the resolved recipe. Raises UserError where `path` holds something else."""
    if path.exists() and any(path.iterdir()):
        raise UserError(f"{path} exists and is not a run", hint="--run NEW_FOLDER")
    path.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(path / RECIPE_FILE, recipe_text.encode())
    # run.json comes last: a folder without it is not yet a run.
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    write_json_atomically(path / RUN_FILE, {"id": uuid.uuid4().hex[:12], "schema_version": SCHEMA_VERSION, "created_at": created_at})
    return Run(path)


def is_run(path: Path) -> bool:
    return (path / RUN_FILE).is_file()


def resolve_run(argument: Path | None) -> tuple[Run, str]:
    """The run that a command means and why: named > $DETKIT_RUN > standing inside one > .detkit/current.

    Raises UserError with the list of runs nearby where none of them leads to one.
    """
    here = Path.cwd()
    inside = next((p for p in (here, *here.parents) if is_run(p)), None)
    current = CURRENT.read_text().strip() if CURRENT.is_file() else ""
    candidates: tuple[tuple[Path | None, str], ...] = (
        (argument, "named on the command line"),
        (Path(os.environ["DETKIT_RUN"]) if os.environ.get("DETKIT_RUN") else None, "from $DETKIT_RUN"),
        (inside, "the working directory lies in it"),
        (Path(current) if current else None, f"from {CURRENT}"),
    )
    for path, reason in candidates:
        if path is None:
            continue
        if not is_run(path):
            raise UserError(f"{path} ({reason}) is not a run", hint=runs_sentence(here))
        return Run(path), reason
    raise UserError("no run was named", hint=runs_sentence(here))


def runs_below(folder: Path) -> list[Path]:
    """Runs in `folder` and one level below it, by name."""
    places = [folder, *sorted(p for p in folder.glob("*") if p.is_dir()), *sorted(folder.glob("*/*/"))]
    return [p for p in places if is_run(p)]


def runs_sentence(folder: Path) -> str:
    """What to type, given the runs nearby."""
    names = [os.path.relpath(p) for p in runs_below(folder)[:10]]
    return f"runs here: {', '.join(names)}" if names else "detkit train RECIPE makes one"


def remember_current(run: Run) -> None:
    """Make `run` the one that later commands in this directory mean."""
    CURRENT.parent.mkdir(exist_ok=True)
    write_bytes_atomically(CURRENT, f"{run.path}\n".encode())
