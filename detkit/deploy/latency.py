"""Latency statistics: warm-up until stable, percentiles, and whether there is enough to believe them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

BLOCK = 20
BLOCKS = 5
FEWEST_SAMPLES = 100


@dataclass(frozen=True)
class Warmup:
    """How the warm-up ended: `variation` is the coefficient of variation of the last block medians."""

    stable: bool
    variation: float
    num_calls: int
    duration_s: float


def warmed_up(call: Callable[[], object], *, longest_s: float, max_variation: float) -> Warmup:
    """Call until the medians of the last BLOCKS blocks of BLOCK calls vary by at most `max_variation`, or time is up."""
    began = time.perf_counter()
    medians: list[float] = []
    variation = float("inf")
    while True:
        medians.append(statistics.median(timed_ms(call) for _ in range(BLOCK)))
        recent = medians[-BLOCKS:]
        if len(recent) == BLOCKS:
            variation = statistics.stdev(recent) / statistics.mean(recent)
        elapsed_s = time.perf_counter() - began
        if variation <= max_variation or elapsed_s > longest_s:
            return Warmup(variation <= max_variation, variation, len(medians) * BLOCK, elapsed_s)


def timed_ms(call: Callable[[], object]) -> float:
    """Duration of one call, ms."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def sampled_ms(call: Callable[[], object], *, duration_s: float) -> list[float]:
    """Durations of back-to-back calls for `duration_s`, at least ten, ms."""
    ends_at = time.perf_counter() + duration_s
    samples = []
    while time.perf_counter() < ends_at or len(samples) < 10:
        samples.append(timed_ms(call))
    return samples


def summary(samples_ms: list[float], *, images_per_call: int) -> dict[str, Any]:
    """Percentiles by nearest rank, mean, spread and throughput of sequential calls."""
    ordered = sorted(samples_ms)
    mean = statistics.fmean(ordered)
    return {
        "latency_ms_p50": percentile(ordered, 50),
        "latency_ms_p90": percentile(ordered, 90),
        "latency_ms_p99": percentile(ordered, 99),
        "latency_ms_mean": mean,
        "latency_ms_min": ordered[0],
        "latency_ms_max": ordered[-1],
        "variation": statistics.stdev(ordered) / mean if len(ordered) > 1 else 0.0,
        "num_samples": len(ordered),
        "images_per_s": images_per_call * 1e3 / mean,
    }


def percentile(ordered: list[float], percent: int) -> float:
    """The smallest sample that at least `percent` per cent of the samples do not exceed."""
    rank = -(-percent * len(ordered) // 100)
    return ordered[max(rank, 1) - 1]


def caveats(latency: dict[str, Any], load_before: float) -> list[str]:
    """Why the figures should be doubted; said first. `latency` holds `warmup`, `engine` and `file_to_boxes`."""
    found = []
    warmup = latency["warmup"]
    if not warmup["stable"]:
        found.append(f"never stable: block medians still varied by {warmup['variation']:.1%} after {warmup['duration_s']:.1f} s")
    for name in ("engine", "file_to_boxes"):
        count = latency[name]["num_samples"]
        if count < FEWEST_SAMPLES:
            found.append(f"only {count} samples of {name}; percentiles need {FEWEST_SAMPLES}: --set bench.duration_s=...")
    if load_before > 0.5:
        found.append(f"the machine was busy before: load {load_before:.2f}")
    return found
