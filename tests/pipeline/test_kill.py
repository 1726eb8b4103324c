"""SIGKILL during each stage, then the same command again: it completes, and nothing half-written is read."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from detkit.core.manifest import read_manifest
from tests.conftest import REPOSITORY, detkit

pytestmark = pytest.mark.slow


def killed(arguments: list[str], cwd: Path, when: Callable[[], bool], *, patience_s: float = 120) -> bool:
    """Start a command and SIGKILL it once `when` holds; False where it ended before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "detkit", *arguments],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    ends_at = time.monotonic() + patience_s
    while time.monotonic() < ends_at and process.poll() is None:
        if when():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)
    process.wait()
    return False


def test_killed_training_resumes_with_the_same_command_and_ends_as_if_never_killed(tmp_path: Path) -> None:
    arguments = ["train", str(REPOSITORY / "recipes/smoke.yaml"), "--set", "model.block=plain", "--set", "train.epochs=4"]
    detkit(*arguments, "--run", "whole", cwd=tmp_path)
    checkpoint = tmp_path / "run/train/last.ckpt"
    assert killed(arguments, tmp_path, checkpoint.is_file)
    assert read_manifest(tmp_path / "run/train") is None
    refused = detkit("fuse", "run", cwd=tmp_path, check=False)
    assert refused.returncode == 1 and "training has not finished" in refused.stderr
    again = detkit(*arguments, cwd=tmp_path)
    assert "resuming after iteration" in again.stderr
    weights = [(tmp_path / n / "train/model.safetensors").read_bytes() for n in ("whole", "run")]
    assert weights[0] == weights[1]


STAGES = {
    "fuse": (["fuse", "run", "--force"], ".staging-fuse", "fuse"),
    "export": (["export", "run", "--force"], ".staging-export", "export"),
    "compile": (
        ["compile", "run", "--target", "openvino", "--force"],
        "compile/.staging-openvino-fp32-b1",
        "compile/openvino-fp32-b1",
    ),
    "bench": (
        ["bench", "run", "--target", "openvino", "--device", "cpu", "--force"],
        "bench/cpu/.staging-openvino-fp32-b1",
        "bench/cpu/openvino-fp32-b1",
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_killed_stage_leaves_the_old_result_and_completes_when_run_again(stage: str, run_copy: Path) -> None:
    arguments, staging, folder = STAGES[stage]
    detkit(*[a for a in arguments if a != "--force"], cwd=run_copy.parent)
    before = read_manifest(run_copy / folder)
    assert before is not None
    assert killed(arguments, run_copy.parent, (run_copy / staging).is_dir), "the stage was never caught in the act"
    after = read_manifest(run_copy / folder)
    assert after == before
    assert all((run_copy / folder / name).is_file() for name in before.outputs)
    detkit(*arguments, cwd=run_copy.parent)
    final = read_manifest(run_copy / folder)
    assert final is not None and final.started_at >= before.started_at
    assert not (run_copy / staging).exists()


def test_two_writers_the_second_gets_a_sentence_and_exit_1(run_copy: Path) -> None:
    from detkit.core.run import Run

    with Run(run_copy).lock():
        done = detkit("fuse", "run", "--force", cwd=run_copy.parent, check=False)
    assert done.returncode == 1
    assert f"is being written by process {os.getpid()}" in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_ends_with_130_and_a_sentence(tmp_path: Path) -> None:
    arguments = ["train", str(REPOSITORY / "recipes/smoke.yaml"), "--set", "model.block=plain", "--set", "train.epochs=500"]
    process = subprocess.Popen(
        [sys.executable, "-m", "detkit", *arguments],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Shells start background jobs with SIGINT ignored, and Python then leaves it so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    ends_at = time.monotonic() + 120
    while not (tmp_path / "run/train/last.ckpt").is_file() and time.monotonic() < ends_at:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted; the same command continues" in said and "Traceback" not in said


@pytest.mark.parametrize("arguments", [["trian"], ["train"], ["bench", "--devise", "cpu"]])
def test_a_wrong_command_line_exits_with_2(arguments: list[str], tmp_path: Path) -> None:
    done = detkit(*arguments, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_settings_of_a_run_that_never_trained_give_way(tmp_path: Path) -> None:
    recipe = REPOSITORY / "recipes/bccd.yaml"
    assert detkit("train", recipe, cwd=tmp_path, check=False).returncode == 1
    done = detkit("train", recipe, "--set", "data.root=elsewhere", cwd=tmp_path, check=False)
    assert "is not a folder" in done.stderr and "other settings" not in done.stderr


def processes_naming(text: str) -> list[int]:
    """Process ids whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            # It ended meanwhile.
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a child of its parent's death on Linux only")
def test_ranks_end_with_a_launcher_that_was_killed(tmp_path: Path) -> None:
    arguments = ["train", str(REPOSITORY / "recipes/smoke.yaml"), "--nproc", "2", "--run", "ranks"]
    arguments += ["--set", "train.epochs=500", "--set", "model.block=plain"]
    log = (tmp_path / "log").open("w")
    launcher = subprocess.Popen([sys.executable, "-m", "detkit", *arguments], cwd=tmp_path, stdout=log, stderr=log)
    marker = str(tmp_path / "ranks/train")
    ends_at = time.monotonic() + 120
    while not (tmp_path / "ranks/train/last.ckpt").is_file():
        assert launcher.poll() is None and time.monotonic() < ends_at, (tmp_path / "log").read_text()
        time.sleep(0.1)
    assert len(processes_naming(marker)) >= 3, "torchrun and two ranks"
    launcher.kill()
    launcher.wait()
    ends_at = time.monotonic() + 20
    while (alive := processes_naming(marker)) and time.monotonic() < ends_at:
        time.sleep(0.1)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert not alive
