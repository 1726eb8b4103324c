"""Where the real data lies, and a small trained run that several tests share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("DETKIT_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of this session's own, so that no test sees what was made before."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real pictures and labels beside the project; tests skip where they are absent."""
    if not SHARED.is_dir():
        pytest.skip(f"real data absent: {SHARED}; set DETKIT_SHARED_DATA")
    return SHARED


def detkit(*arguments: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "detkit", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained for a few iterations on drawn scenes, fused and exported. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("shared-run")
    recipe = REPOSITORY / "recipes" / "smoke.yaml"
    detkit("train", recipe, "--set", "train.epochs=2", "--set", "model.block=repvgg", cwd=folder)
    detkit("export", "run", cwd=folder)
    return folder / "run"


@pytest.fixture
def run_copy(trained_run: Path, tmp_path: Path) -> Path:
    """A private copy of the trained run."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))
