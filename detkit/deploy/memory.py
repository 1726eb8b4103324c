"""Memory that an artifact needs: the largest resident set of a process that does nothing but run it.

As a program: `python -m detkit.deploy.memory FOLDER TARGET THREADS` prints the MiB before loading and at the peak.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.errors import UserError
from detkit.deploy.contract import read_contract
from detkit.deploy.machine import peak_memory_mb
from detkit.deploy.runners import open_runner

CALLS = 10


def memory_of(folder: Path, target: str, *, threads: int) -> dict[str, Any]:
    """`before_mb` (interpreter and detkit) and `peak_mb` of running the artifact in `folder` in a process of its own."""
    command = [sys.executable, "-m", "detkit.deploy.memory", str(folder), target, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UserError(f"the artifact does not run in a process of its own: {last[0]}", hint="detkit compile --force")
    return json.loads(done.stdout)


def main(folder: Path, target: str, threads: int) -> None:
    before_mb = peak_memory_mb()
    contract = read_contract(folder)
    runner = open_runner(folder, target, contract, threads=threads)
    inputs = np.zeros(contract.input_shape, contract.input_dtype)
    for _ in range(CALLS):
        runner(inputs)
    print(json.dumps({"before_mb": before_mb, "peak_mb": peak_memory_mb()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
