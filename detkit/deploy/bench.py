"""The bench stage: latency, throughput, the split from file to boxes, memory and accuracy of one artifact."""

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.console import say
from detkit.core.errors import UserError
from detkit.core.files import write_json_atomically
from detkit.core.stage import Work
from detkit.data.dataset import load_dataset
from detkit.data.images import read_image
from detkit.deploy.contract import Contract, read_contract
from detkit.deploy.evaluate import evaluate_runner
from detkit.deploy.latency import caveats, sampled_ms, summary, warmed_up
from detkit.deploy.machine import energy_joules, is_jetson, machine_card
from detkit.deploy.memory import memory_of
from detkit.deploy.runners import Runner, open_runner

STEPS = ("decode", "letterbox", "normalise", "infer", "postprocess")


def check_device(device: str) -> None:
    """Raises UserError for devices that cannot be measured from here, saying what to do."""
    if device == "cpu":
        return
    if device == "jetson" and not is_jetson():
        raise UserError(
            "this machine is not a Jetson (no /etc/nv_tegra_release), and benching one over SSH is not built yet",
            hint="copy the run to the board and run `detkit bench --device jetson` there, or `--device cpu` here",
        )
    if device == "jetson":
        raise UserError(
            "executing TensorRT engines on the board is not built yet",
            hint="/usr/src/tensorrt/bin/trtexec --loadEngine=model.engine measures it; `--device cpu` measures the CPU",
        )
    if device == "cuda":
        raise UserError("executing engines on a GPU is not built yet", hint="detkit bench --device cpu")
    raise UserError(f"there is no device {device!r}", hint="--device cpu or --device jetson")


def bench_stage(work: Work) -> dict[str, Any]:
    """Measure the variant `work.options["variant"]` (target-precision-bN) and write latency.json and accuracy.json."""
    settings = work.recipe.bench
    check_device(settings.device)
    variant: str = work.options["variant"]
    source = work.run.folder(f"compile/{variant}")
    card = machine_card()
    contract = read_contract(source)
    target = variant.split("-")[0]
    runner = open_runner(source, target, contract, threads=settings.threads)
    dataset = load_dataset(work.recipe.data, "val")
    chosen = dataset.images[: settings.accuracy_images or None]
    latency = measured(runner, contract, [image.path for image in chosen], settings) | {"machine": card}
    memory = memory_of(source, target, threads=settings.threads)
    # Not of this process, which may have trained or compiled before.
    latency |= {"peak_memory_mb": memory["peak_mb"], "memory_before_loading_mb": memory["before_mb"]}
    latency["caveats"] = caveats(latency, card["load_1min_before"])
    for caveat in latency["caveats"]:
        say(f"bench: {caveat}")
    write_json_atomically(work.folder / "latency.json", latency)
    accuracy = evaluate_runner(runner, contract, type(dataset)(chosen, dataset.classes, dataset.category_ids, ()))
    accuracy.pop("results")
    write_json_atomically(work.folder / "accuracy.json", accuracy)
    return {
        "caveats": latency["caveats"],
        "engine": latency["engine"],
        "file_to_boxes": latency["file_to_boxes"],
        "split_ms": latency["split_ms"],
        "peak_memory_mb": latency["peak_memory_mb"],
        "num_threads": latency["num_threads"],
        "energy": latency["energy"],
        "accuracy": {k: v for k, v in accuracy.items() if not isinstance(v, dict)},
        "machine": card,
        "variant": variant,
    }


def measured(runner: Runner, contract: Contract, paths: list[Path], settings: Any) -> dict[str, Any]:
    """Engine-only and file-to-boxes figures; latencies are of one call with the artifact's batch."""
    engine_input = one_input(contract, paths)
    warmup = warmed_up(lambda: runner(engine_input), longest_s=settings.warmup_s, max_variation=settings.max_variation)
    before = energy_joules()
    samples = sampled_ms(lambda: runner(engine_input), duration_s=settings.duration_s)
    energy = energy_sentence(before, energy_joules(), len(samples) * contract.batch)
    split: dict[str, list[float]] = defaultdict(list)
    position = 0

    def file_to_boxes() -> None:
        nonlocal position
        batch = [paths[(position + i) % len(paths)] for i in range(contract.batch)]
        position += contract.batch
        for step, duration_ms in one_pass(runner, contract, batch).items():
            split[step].append(duration_ms)

    for _ in range(5):
        file_to_boxes()
    split.clear()
    whole = sampled_ms(file_to_boxes, duration_s=settings.duration_s)
    return {
        "scenario": "single stream, saturated: each call starts when the one before has ended",
        "batch": contract.batch,
        "warmup": vars(warmup),
        "engine": summary(samples, images_per_call=contract.batch),
        "engine_samples_ms": [round(s, 4) for s in samples],
        "file_to_boxes": summary(whole, images_per_call=contract.batch),
        "split_ms": {step: float(np.median(split[step])) for step in STEPS},
        "num_threads": runner.num_threads(),
        "energy": energy,
        "num_pictures": len(paths),
    }


def one_input(contract: Contract, paths: list[Path]) -> np.ndarray:
    """A batch of real pictures as the graph takes it."""
    pictures = [read_image(paths[i % len(paths)]) for i in range(contract.batch)]
    return contract.graph_input(np.stack([contract.geometry.letterbox(p) for p in pictures]))


def one_pass(runner: Runner, contract: Contract, paths: list[Path]) -> dict[str, float]:
    """From files to boxes in the original pictures; duration of each step, ms."""
    marks = [time.perf_counter()]
    pictures = [read_image(path) for path in paths]
    marks.append(time.perf_counter())
    letterboxed = np.stack([contract.geometry.letterbox(p) for p in pictures])
    marks.append(time.perf_counter())
    inputs = contract.graph_input(letterboxed)
    marks.append(time.perf_counter())
    tables = runner(inputs)
    marks.append(time.perf_counter())
    for table, picture in zip(tables, pictures, strict=True):
        contract.detections(table, (picture.shape[0], picture.shape[1])).above(contract.score_threshold)
    marks.append(time.perf_counter())
    return {step: (end - start) * 1e3 for step, start, end in zip(STEPS, marks, marks[1:], strict=False)}


def energy_sentence(before: float | None, after: float | None, num_images: int) -> dict[str, Any]:
    """Energy per image over the engine-only part, or why there is none."""
    if before is not None and after is not None and after < before:
        return {"measured": False, "reason": "the energy counter wrapped during the measurement"}
    if before is None or after is None:
        return {"measured": False, "reason": "this machine has no readable energy counter (RAPL)"}
    return {"measured": True, "energy_j_per_image": (after - before) / num_images, "source": "RAPL package counter"}
