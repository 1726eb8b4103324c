"""onnxsim behind a guard: in its own process, with a time limit and a size limit."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LARGEST_BYTES = 2_000_000_000


@dataclass(frozen=True)
class Simplification:
    """Whether `target` was written, and why not where it was not."""

    done: bool
    reason: str


def simplified(source: Path, target: Path, *, timeout_s: float) -> Simplification:
    """Simplify `source` into `target`. A crash, a time-out or a graph too large leaves no target and says why."""
    size_bytes = source.stat().st_size
    if size_bytes > LARGEST_BYTES:
        return Simplification(False, f"the graph has {size_bytes} bytes, more than the simplifier's {LARGEST_BYTES}")
    command = [sys.executable, "-m", "onnxsim", str(source), str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        target.unlink(missing_ok=True)
        return Simplification(False, f"onnxsim took longer than {timeout_s:g} s")
    if done.returncode != 0 or not target.is_file():
        target.unlink(missing_ok=True)
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        return Simplification(False, f"onnxsim ended with status {done.returncode}: {last[0]}")
    return Simplification(True, "simplified")
