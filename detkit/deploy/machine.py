"""What this machine is: processor, memory, versions and, where readable, energy."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

JETSON_MARK = Path("/etc/nv_tegra_release")
RAPL = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
LIBRARIES = ("detkit", "numpy", "pillow", "onnxruntime", "openvino", "tensorrt-rtx-cu13", "tensorrt")


def machine_card() -> dict[str, Any]:
    """Facts that a measurement belongs to."""
    return {
        "processor": processor_name(),
        "num_cpus": os.cpu_count(),
        "load_1min_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: v for name in LIBRARIES if (v := installed(name))},
    }


def processor_name() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_jetson() -> bool:
    return JETSON_MARK.is_file()


def peak_memory_mb() -> float:
    """Largest resident set of this process so far, MiB.

    Not getrusage: its maximum is inherited from the parent over fork and exec.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def energy_joules() -> float | None:
    """Package energy counter of the processor, J, or None where the kernel does not let us read it."""
    try:
        return int(RAPL.read_text()) / 1e6
    except (OSError, ValueError):
        return None
