"""Verdicts on pictures: from processes as from threads, after a process was killed, and when the user has had enough."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detkit.data import verify
from detkit.data.verify import Verdict, verdict_of, verdicts_of
from tests.unit.test_data_faults import picture


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """70 names: PNG and JPEG files of several sizes, one turned by EXIF, one torn, one that is not there."""
    paths = [picture(tmp_path / f"{n:02d}.{'jpg' if n % 3 else 'png'}", (40 + n, 30), seed=n) for n in range(70)]
    paths[11].write_bytes(paths[11].read_bytes()[:200])
    paths[40].unlink()
    return paths


def test_processes_say_what_threads_say(pictures: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = [verdict_of(path) for path in pictures]
    assert [index for index, verdict in enumerate(plain) if verdict.error] == [11, 40]
    told: list[int] = []
    monkeypatch.setattr(verify, "MANY", 1)
    monkeypatch.setattr(verify, "CHUNK", 4)
    assert verdicts_of(pictures, progress=told.append) == plain
    assert told == list(range(1, 71))


def test_a_killed_process_costs_no_picture(
    pictures: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = [verdict_of(path) for path in pictures]
    here = os.getpid()

    def deadly(path: Path, *, decode: bool = True) -> Verdict:
        if path == pictures[30] and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return verdict_of(path, decode=decode)

    monkeypatch.setattr(verify, "MANY", 1)
    monkeypatch.setattr(verify, "CHUNK", 4)
    monkeypatch.setattr(verify, "verdict_of", deadly)
    # A function of a test is not found by name in another process; a forked one has it.
    monkeypatch.setattr(deadly, "__qualname__", "verdict_of")
    monkeypatch.setattr(deadly, "__module__", verify.__name__)
    assert verdicts_of(pictures) == plain
    assert "was killed" in capsys.readouterr().err


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from detkit.data import verify
real = verify.verdict_of
def slow(path, *, decode=True):
    time.sleep(0.05)
    return real(path, decode=decode)
slow.__qualname__, slow.__module__ = "verdict_of", verify.__name__
verify.verdict_of = slow
print("begins", flush=True)
try:
    verify.verdicts_of([Path({str(tmp_path)!r}) / f"{{n}}.png" for n in range(4096)])
except KeyboardInterrupt:
    print("ended", flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    time.sleep(1)
    # As a terminal does: to every process of the group.
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert (out, errors, process.returncode) == ("ended\n", "", 0)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
