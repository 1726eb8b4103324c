"""Bring a stage up to date: compare recorded facts, build aside, commit by rename."""

import importlib.metadata
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from detkit.core.console import say
from detkit.core.errors import UserError
from detkit.core.files import sha256_of_file, sync_folder
from detkit.core.manifest import MANIFEST, Manifest, differences, read_manifest
from detkit.core.run import Run


@dataclass(frozen=True)
class Work:
    """What a stage gets: the run, its recipe, the folder to write into, and facts that change no result."""

    run: Run
    recipe: Any
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A function and what its result depends on.

    `folder` lies below the run. `params` are dotted names of recipe settings, whole sections included. `inputs` are
    files below the run. `tools` are distributions whose version matters. `version` is raised by hand when the meaning
    of the result changes. A `resumable` stage works in its own folder, where an unfinished state may lie; its
    manifest, written last, is what commits it.
    """

    name: str
    folder: str
    version: int
    function: Callable[[Work], dict[str, Any]]
    params: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    resumable: bool = False


def bring_up_to_date(
    stage: Stage, run: Run, recipe: Any, *, force: bool = False, options: dict[str, Any] | None = None
) -> tuple[Manifest, bool]:
    """Run the stage if its recorded facts differ from the present ones; return its manifest and whether it ran.

    The caller holds the run's lock. An error in the stage leaves the old result untouched.
    """
    folder = run.folder(stage.folder)
    recover(folder)
    present = facts(stage, run, recipe)
    recorded = read_manifest(folder)
    reasons = reasons_to_run(recorded, present, folder, force=force)
    if not reasons:
        assert recorded is not None
        return recorded, False
    say(f"{stage.folder}: {'; '.join(reasons)}")
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    began = time.perf_counter()
    target = opened(stage, folder)
    results = stage.function(Work(run, recipe, target, options or {}))
    manifest = present.model_copy(
        update={
            "outputs": hashes(target, files_below(target)),
            "results": results,
            "started_at": started_at,
            "duration_s": time.perf_counter() - began,
        }
    )
    manifest.write(target)
    if target != folder:
        swap(target, folder)
    return manifest, True


def reasons_to_run(recorded: Manifest | None, present: Manifest, folder: Path, *, force: bool) -> list[str]:
    """Why the stage must run; empty when its result is up to date and whole."""
    if recorded is None:
        return ["not made yet"]
    if force:
        return ["forced"]
    return differences(recorded, present) + damaged(recorded, folder)


def damaged(recorded: Manifest, folder: Path) -> list[str]:
    """Outputs that are missing or no longer have the content that the stage wrote."""
    found = []
    for name, digest in recorded.outputs.items():
        path = folder / name
        if not path.is_file():
            found.append(f"output {name} is missing")
        elif sha256_of_file(path) != digest:
            found.append(f"output {name} was changed after it was made")
    return found


def facts(stage: Stage, run: Run, recipe: Any) -> Manifest:
    """What the stage's result depends on, as it is now. Raises UserError where an input is missing."""
    missing = [name for name in stage.inputs if not run.folder(name).is_file()]
    if missing:
        raise UserError(f"{stage.name} needs {', '.join(missing)}, which {run.path} lacks", hint="detkit status")
    return Manifest(
        stage=stage.name,
        version=stage.version,
        params={name: value for dotted in stage.params for name, value in leaves(recipe, dotted)},
        inputs=hashes(run.path, [run.folder(name) for name in stage.inputs]),
        tools={name: version_of(name) for name in stage.tools},
    )


def leaves(recipe: Any, dotted: str) -> list[tuple[str, Any]]:
    """Settings below a dotted name as (dotted name, JSON value)."""
    node: Any = recipe.model_dump(mode="json")
    for part in dotted.split("."):
        node = node[part]
    if not isinstance(node, dict):
        return [(dotted, node)]
    return [leaf for key in node for leaf in leaves(recipe, f"{dotted}.{key}")]


def version_of(distribution: str) -> str:
    """Installed version of a distribution, or `absent`."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def opened(stage: Stage, folder: Path) -> Path:
    """The folder that the stage writes into: its own if resumable, else an empty one beside it."""
    if stage.resumable:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).unlink(missing_ok=True)
        return folder
    staging = beside(folder, "staging")
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)
    return staging


def beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{kind}-{folder.name}")


def swap(staging: Path, folder: Path) -> None:
    """Put `staging` in the place of `folder` by two renames; `recover` finishes what a kill between them left."""
    for path in files_below(staging):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    old = beside(folder, "old")
    if folder.exists():
        folder.rename(old)
    staging.rename(folder)
    sync_folder(folder.parent)
    if old.exists():
        shutil.rmtree(old)


def recover(folder: Path) -> None:
    """Undo what a killed writer left: bring back the old result if its successor never arrived, drop leftovers."""
    old, staging = beside(folder, "old"), beside(folder, "staging")
    if old.exists():
        if folder.exists():
            shutil.rmtree(old)
        else:
            old.rename(folder)
    if staging.exists():
        shutil.rmtree(staging)


def files_below(folder: Path) -> list[Path]:
    """Files below a folder without hidden ones and the manifest, sorted."""
    found = [p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST]
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def hashes(root: Path, paths: list[Path]) -> dict[str, str]:
    """SHA-256 of files by their path below `root`."""
    return {path.relative_to(root).as_posix(): sha256_of_file(path) for path in paths}
