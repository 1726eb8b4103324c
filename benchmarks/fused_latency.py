"""Latency of a fused network against the same network written with plain convolutions, in ONNX Runtime, interleaved.

    python benchmarks/fused_latency.py --block dbb

The two graphs must have the same parameters and multiply-accumulates; the ratio of their medians should be 1.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from detkit.export.onnx_export import onnx_from_model
from detkit.export.simplify import simplified
from detkit.models.build import build_detector
from detkit.models.cost import cost_of
from detkit.models.fuse import fused
from detkit.recipe.schema import ModelSettings


def graph(block: str, size: str, side_px: int, folder: Path) -> tuple[str, object]:
    """A file of the simplified graph of the fused network with `block`, and the network's cost."""
    model = fused(build_detector(ModelSettings(size=size, block=block), 3))
    geometry = {"mean": [0, 0, 0], "std": [1, 1, 1]}
    card = {"image_size_px": side_px, "model": {"max_detections": 100}, "geometry": geometry}
    raw, final = folder / f"{block}.raw.onnx", folder / f"{block}.onnx"
    onnx.save(onnx_from_model(model, card, batch=1, opset=17, uint8_input=False), raw)
    outcome = simplified(raw, final, timeout_s=120)
    assert outcome.done, outcome.reason
    return str(final), cost_of(model, side_px)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--block", default="dbb")
    parser.add_argument("--size", default="n")
    parser.add_argument("--image-size-px", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=8)
    options = parser.parse_args()
    image = np.random.default_rng(0).random((1, 3, options.image_size_px, options.image_size_px), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        built = {
            name: graph(block, options.size, options.image_size_px, Path(folder))
            for name, block in (("fused", options.block), ("plain", "plain"))
        }
        assert built["fused"][1] == built["plain"][1], (built["fused"][1], built["plain"][1])
        times: dict[str, list[float]] = {name: [] for name in built}
        # Where a session's memory comes to lie changes its latency by several per cent, so many are made of each.
        for number in range(options.sessions):
            names = list(built) if number % 2 else list(built)[::-1]
            sessions = {name: onnxruntime.InferenceSession(built[name][0], providers=["CPUExecutionProvider"]) for name in names}
            for round_index in range(options.rounds):
                for name in names if round_index % 2 else names[::-1]:
                    began = time.perf_counter()
                    sessions[name].run(None, {"images": image})
                    if round_index >= options.rounds // 10:
                        times[name].append((time.perf_counter() - began) * 1e3)
    p50 = {name: statistics.median(values) for name, values in times.items()}
    ratio = p50["fused"] / p50["plain"]
    print(f"{built['fused'][1]}; fused p50 {p50['fused']:.2f} ms, plain p50 {p50['plain']:.2f} ms, ratio {ratio:.3f}")
    print(json.dumps({"fused_ms_p50": p50["fused"], "plain_ms_p50": p50["plain"], "ratio": ratio}))


if __name__ == "__main__":
    main()
