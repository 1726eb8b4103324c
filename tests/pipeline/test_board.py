"""On a machine with the runtime half only: what was fused and exported elsewhere is built, measured and never remade."""

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from detkit.core.files import read_json
from tests.conftest import REPOSITORY, detkit

TRAINING_HALF = ("torch", "timm", "onnxsim", "onnxscript", "safetensors", "cv2", "opencv", "functorch")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages like this environment's, without those of the training half."""
    folder = tmp_path_factory.mktemp("board")
    for packages in site.getsitepackages():
        for path in Path(packages).iterdir():
            if path.name not in ("__pycache__",) and not path.name.startswith(TRAINING_HALF) and path.suffix != ".pth":
                (folder / path.name).symlink_to(path)
    return folder


def on_board(board: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{board}{os.pathsep}{REPOSITORY}"}
    # -S: the environment's own packages stay out.
    command = [sys.executable, "-S", "-m", "detkit", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_a_board_builds_from_the_graph_made_elsewhere(board: Path, run_copy: Path) -> None:
    pytest.importorskip("openvino")
    cwd = run_copy.parent
    detkit("compile", "run", "--target", "onnxruntime", "--fp16", cwd=cwd)
    graph = (run_copy / "compile/onnxruntime-fp16-b1/model.onnx").read_bytes()
    done = on_board(board, "compile", "run", "--target", "openvino", "--fp16", cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "taken from onnxruntime-fp16-b1" in done.stderr
    built = run_copy / "compile/openvino-fp16-b1"
    assert (built / "model.onnx").read_bytes() == graph and (built / "model.xml").is_file()
    results = read_json(built / "manifest.json")["results"]
    assert results["graph_from"] == "onnxruntime-fp16-b1" and results["read_back"]["conv_weight_types"] == ["float16"]
    again = on_board(board, "compile", "run", "--target", "openvino", "--fp16", cwd=cwd)
    assert again.returncode == 0 and "taken from" not in again.stderr
    benched = on_board(board, "bench", "run", "--set", "bench.duration_s=0.2", "--set", "bench.warmup_s=0.2", cwd=cwd)
    assert benched.returncode == 0, benched.stderr
    scored = on_board(board, "eval", "run", "--json", cwd=cwd)
    assert scored.returncode == 0 and '"openvino-fp16-b1"' in scored.stdout and '"fuse"' not in scored.stdout


def test_a_board_says_what_is_missing(board: Path, run_copy: Path, tmp_path: Path) -> None:
    cwd = run_copy.parent
    missing = on_board(board, "compile", "run", "--target", "onnxruntime", "--fp32", cwd=cwd)
    assert missing.returncode == 1 and "no fp32 graph of batch 1" in missing.stderr
    assert "where torch is: detkit compile" in missing.stderr
    for command in (("fuse", "run"), ("export", "run"), ("train", REPOSITORY / "recipes/smoke.yaml", "--run", tmp_path / "new")):
        done = on_board(board, *command, cwd=cwd)
        assert done.returncode == 1 and f"{command[0]} needs torch" in done.stderr, done.stderr
    assert not (tmp_path / "new").exists()


def test_a_graph_of_another_export_or_one_that_was_changed_is_not_taken(board: Path, run_copy: Path) -> None:
    cwd = run_copy.parent
    detkit("compile", "run", "--target", "onnxruntime", "--fp16", cwd=cwd)
    path = run_copy / "compile/onnxruntime-fp16-b1/model.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    done = on_board(board, "compile", "run", "--target", "openvino", "--fp16", cwd=cwd)
    assert done.returncode == 1 and "onnxruntime-fp16-b1/model.onnx is missing or was changed" in done.stderr
