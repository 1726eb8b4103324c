"""Start one training over several processes on this machine through torchrun."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from detkit.core.errors import UserError
from detkit.core.files import write_json_atomically
from detkit.recipe.schema import Recipe

SCORES = ".scores.json"
RECIPE = ".recipe.json"
# From linux/prctl.h.
PR_SET_PDEATHSIG = 1


def launched(folder: Path, recipe: Recipe, *, nproc: int) -> None:
    """Run `nproc` ranks to the end. Raises UserError if one fails; torchrun then ends the others."""
    write_json_atomically(folder / RECIPE, recipe.model_dump(mode="json"))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={nproc}",
        "-m",
        "detkit.train.worker",
        str(folder),
    ]
    threads = max(1, (os.cpu_count() or 1) // nproc)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    # A killed launcher must not leave ranks behind that write into a run whose lock is free again.
    status = subprocess.run(command, env=environment, check=False, preexec_fn=end_with_parent).returncode
    if status:
        raise UserError(
            f"training with {nproc} processes ended with status {status}; the first failing rank's error is above",
            hint="detkit train RECIPE --nproc 1 runs the same in one process",
        )


def end_with_parent() -> None:
    """Have Linux send this process SIGTERM when its parent dies, by whatever death; does nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


def read_scores(folder: Path) -> dict[str, Any]:
    """Results that the first rank left for the launching process."""
    path = folder / SCORES
    results: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    (folder / RECIPE).unlink()
    return results
