"""Percentiles, warm-up, caveats, energy and memory of the bench."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detkit.core.errors import UserError
from detkit.deploy.bench import check_device, energy_sentence
from detkit.deploy.latency import caveats, percentile, sampled_ms, summary, warmed_up
from detkit.deploy.memory import memory_of
from tests.tiny import write_tiny


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=300), st.sampled_from([1, 50, 90, 99, 100]))
def test_percentile_is_the_nearest_rank(samples: list[float], percent: int) -> None:
    assert percentile(sorted(samples), percent) == np.percentile(samples, percent, method="inverted_cdf")


def test_summary_counts_pictures_of_a_batch() -> None:
    found = summary([10.0, 20.0, 30.0], images_per_call=4)
    assert found["images_per_s"] == pytest.approx(200.0) and found["latency_ms_p50"] == 20.0
    assert (found["latency_ms_min"], found["latency_ms_max"], found["num_samples"]) == (10.0, 30.0, 3)


def test_warmup_ends_when_block_medians_agree_and_says_when_they_never_do() -> None:
    assert warmed_up(lambda: time.sleep(0.001), longest_s=20, max_variation=0.5).stable
    pauses = itertools.cycle([0.0] * 20 + [0.002] * 20)
    never = warmed_up(lambda: time.sleep(next(pauses)), longest_s=0.3, max_variation=0.01)
    assert not never.stable and never.variation > 0.3 and never.duration_s >= 0.3


def test_at_least_ten_samples_are_taken_of_a_slow_call() -> None:
    assert len(sampled_ms(lambda: None, duration_s=1e-9)) == 10


@pytest.mark.parametrize(
    ("change", "load", "said"),
    [
        ({}, 0.1, []),
        ({"warmup": {"stable": False, "variation": 0.2, "duration_s": 3.0}}, 0.1, ["never stable: block medians still varied by 20"]),
        ({"engine": {"num_samples": 99}}, 0.1, ["only 99 samples of engine"]),
        ({"file_to_boxes": {"num_samples": 12}}, 0.1, ["only 12 samples of file_to_boxes"]),
        ({}, 1.5, ["the machine was busy before: load 1.50"]),
    ],
)
def test_doubts_about_the_figures_are_named(change: dict[str, Any], load: float, said: list[str]) -> None:
    sound = {
        "warmup": {"stable": True, "variation": 0.01, "duration_s": 1.0},
        "engine": {"num_samples": 100},
        "file_to_boxes": {"num_samples": 100},
    }
    found = caveats(sound | change, load)
    assert len(found) == len(said) and all(line.startswith(start) for line, start in zip(found, said, strict=True))


def test_energy_is_a_figure_or_a_reason() -> None:
    assert energy_sentence(10.0, 16.0, 12) == {"measured": True, "energy_j_per_image": 0.5, "source": "RAPL package counter"}
    assert "no readable" in energy_sentence(None, None, 12)["reason"]
    assert "wrapped" in energy_sentence(16.0, 10.0, 12)["reason"]


@pytest.mark.parametrize("device", ["cuda", "jetson", "toaster"])
def test_devices_that_cannot_be_measured_here_say_what_to_do(device: str) -> None:
    with pytest.raises(UserError) as caught:
        check_device(device)
    assert "--device cpu" in caught.value.hint


@pytest.mark.slow
def test_memory_is_the_artifacts_and_not_that_of_the_process_that_asks(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    ballast = np.ones(300 << 20, np.uint8)
    found = memory_of(write_tiny(tmp_path), "onnxruntime", threads=1)
    assert 0 < found["before_mb"] < found["peak_mb"] < ballast.nbytes / 2**20


def test_an_artifact_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (write_tiny(tmp_path) / "model.onnx").write_bytes(b"torn")
    with pytest.raises(UserError, match="does not run in a process of its own"):
        memory_of(tmp_path, "onnxruntime", threads=1)
