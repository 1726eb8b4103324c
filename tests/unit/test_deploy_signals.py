"""A process that has run OpenVINO lives through signals."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.tiny import write_tiny

pytest.importorskip("openvino")
# Models go in the order in which they came, then signals arrive.
PROGRAM = """
import gc, os, signal, sys
from pathlib import Path
from detkit.deploy.contract import read_contract
from detkit.deploy.signal_stack import signal_stack
from detkit.deploy.targets.openvino import OpenVinoRunner

seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
folder = Path(sys.argv[1])
before = signal_stack()
runners = [OpenVinoRunner(folder / "model.onnx", read_contract(folder)) for _ in range(3)]
while runners:
    runners.pop(0)
    gc.collect()
    os.kill(os.getpid(), signal.SIGUSR1)
after = signal_stack()
print(len(seen), (before.begin, before.flags, before.size) == (after.begin, after.flags, after.size))
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["-X", "faulthandler"]])
def test_signals_after_models_are_gone(tmp_path: Path, flags: list[str]) -> None:
    folder = write_tiny(tmp_path / "variant")
    done = subprocess.run([sys.executable, *flags, "-c", PROGRAM, folder], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["3", "True"]
