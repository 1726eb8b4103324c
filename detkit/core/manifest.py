"""The manifest of a stage: what it depended on, what it made and what it measured."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from detkit.core.files import read_json, write_json_atomically

MANIFEST = "manifest.json"


class Manifest(BaseModel):
    """Facts of one run of a stage; instants are ISO 8601 in UTC, durations seconds."""

    model_config = ConfigDict(frozen=True)

    stage: str
    version: int
    params: dict[str, Any]
    inputs: dict[str, str]
    tools: dict[str, str]
    outputs: dict[str, str] = {}
    results: dict[str, Any] = {}
    started_at: str = ""
    duration_s: float = 0.0

    def write(self, folder: Path) -> None:
        """Write manifest.json into `folder`."""
        write_json_atomically(folder / MANIFEST, self.model_dump(mode="json"))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a stage's folder, or None where the stage has not been committed."""
    path = folder / MANIFEST
    return Manifest.model_validate(read_json(path)) if path.is_file() else None


def differences(recorded: Manifest, present: Manifest) -> list[str]:
    """Why the recorded result is no longer up to date, one sentence each; empty when it is."""
    found = []
    if recorded.version != present.version:
        found.append(f"stage {present.stage} version: {recorded.version} -> {present.version}")
    for kind, old, new in (
        ("param", recorded.params, present.params),
        ("tool", recorded.tools, present.tools),
        ("input", shortened(recorded.inputs), shortened(present.inputs)),
    ):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                found.append(f"{kind} {name}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}")
    return found


def shortened(hashes: dict[str, str]) -> dict[str, str]:
    """Hashes cut to eight digits for people to read."""
    return {name: value[:8] for name, value in hashes.items()}
