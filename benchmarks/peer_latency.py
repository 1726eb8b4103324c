"""Batch-1 latency of a detkit ONNX graph against a peer's, interleaved in one process, in OpenVINO.

    python benchmarks/peer_latency.py run/export/model.onnx yolo11n.onnx

The peer's file is made by whoever has the peer, for example with
`yolo export model=yolo11n.yaml format=onnx imgsz=320`; detkit does not depend on it.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import openvino as ov


def compiled(path: Path, precision: str) -> ov.InferRequest:
    """An inference request for `path` in the latency mode of the CPU plugin."""
    settings = {"PERFORMANCE_HINT": "LATENCY"}
    if precision != "default":
        settings["INFERENCE_PRECISION_HINT"] = precision
    return ov.Core().compile_model(str(path), "CPU", settings).create_infer_request()


def timed_ms(request: ov.InferRequest, image: np.ndarray) -> float:
    began = time.perf_counter()
    request.infer({0: image})
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours", type=Path)
    parser.add_argument("peer", type=Path)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--precision", default="default", choices=["default", "f32", "bf16"])
    options = parser.parse_args()
    requests = {name: compiled(getattr(options, name), options.precision) for name in ("ours", "peer")}
    generator = np.random.default_rng(0)
    images = {name: generator.random(tuple(request.model_inputs[0].shape), dtype=np.float32) for name, request in requests.items()}
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for round_index in range(options.rounds):
        for name, request in requests.items():
            elapsed = timed_ms(request, images[name])
            if round_index >= options.rounds // 10:
                times[name].append(elapsed)
    p50 = {name: statistics.median(values) for name, values in times.items()}
    ratio = p50["ours"] / p50["peer"]
    print(f"ours p50 {p50['ours']:.2f} ms, peer p50 {p50['peer']:.2f} ms, ratio {ratio:.3f}")
    print(json.dumps({"ours_ms_p50": p50["ours"], "peer_ms_p50": p50["peer"], "ratio": ratio}))


if __name__ == "__main__":
    main()
