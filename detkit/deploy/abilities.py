"""What this machine can train, build and run, found without importing torch."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

from detkit.deploy.machine import JETSON_MARK, energy_joules, installed, is_jetson

# Ability, modules it needs, what installs them.
LIBRARIES = (
    ("train", ("torch", "torchvision", "timm", "cv2", "pycocotools"), "pip install detkit[train]"),
    ("export to ONNX", ("torch", "onnx", "onnxsim", "onnxruntime"), "pip install detkit[train]"),
    ("write fp16 graphs", ("onnx",), "pip install detkit[train]"),
    ("run onnxruntime artifacts", ("onnxruntime",), "pip install onnxruntime"),
    ("build and run openvino artifacts", ("openvino",), "pip install detkit[openvino]"),
    ("build rtx engines", ("tensorrt_rtx",), "pip install detkit[rtx]"),
)
BF16_FLAGS = ("amx_bf16", "avx512_bf16")


def abilities() -> list[dict[str, Any]]:
    """Rows `ability`, `able`, `why`."""
    rows = [library_row(*row) for row in LIBRARIES]
    gpu = gpu_name()
    rows.append(row("train on a GPU", gpu is not None, gpu or "no NVIDIA driver answers (nvidia-smi)"))
    rows.append(row("fast bf16 training on the CPU", *bf16()))
    rows.append(tensorrt_row(gpu))
    rows.append(row("run rtx and tensorrt engines", False, "executing engines is not built yet; trtexec can"))
    rows.append(row("be benched as --device jetson", False, jetson_reason()))
    counter = energy_joules() is not None
    rows.append(row("measure energy", counter, "RAPL counter" if counter else "no readable energy counter (RAPL)"))
    return rows


def row(ability: str, able: bool, why: str) -> dict[str, Any]:
    return {"ability": ability, "able": able, "why": why}


def library_row(ability: str, modules: tuple[str, ...], remedy: str) -> dict[str, Any]:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        return row(ability, False, f"{', '.join(missing)} missing: {remedy}")
    versions = [f"{name} {installed(name) or ''}".strip() for name in modules]
    return row(ability, True, ", ".join(versions))


def tensorrt_row(gpu: str | None) -> dict[str, Any]:
    name = "build tensorrt engines"
    if importlib.util.find_spec("tensorrt") is None:
        return row(name, False, "tensorrt missing: JetPack brings it; elsewhere from NVIDIA's index")
    return row(name, gpu is not None or is_jetson(), f"tensorrt {installed('tensorrt')}, {gpu or 'no GPU to build for'}")


def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU, or None."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def bf16() -> tuple[bool, str]:
    """Whether the processor computes in bfloat16 itself."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.is_file() else []
    found = [flag for flag in BF16_FLAGS if flag in flags]
    return bool(found), ", ".join(found) or "the processor has neither AMX nor AVX512-BF16: bf16 is slower than fp32"


def jetson_reason() -> str:
    if is_jetson():
        return "executing engines is not built yet; trtexec can"
    return f"not a Jetson (no {JETSON_MARK})"
