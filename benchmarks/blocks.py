"""Training-step time of every block against plain convolutions, in one process, interleaved.

python benchmarks/blocks.py
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

from detkit.models.blocks import make_block

STYLES = {
    "plain": ("plain", "exact"),
    "repvgg": ("repvgg", "exact"),
    "qarepvgg": ("qarepvgg", "exact"),
    "orepa": ("orepa", "exact"),
    "dbb": ("dbb", "exact"),
    "dbb, sampled statistics": ("dbb", "sampled"),
}


def stack(name: str, statistics_kind: str, channels: int) -> nn.Module:
    """Six unit-stride blocks with ReLU, NHWC."""
    layers = [nn.Sequential(make_block(name, channels, channels, statistics=statistics_kind), nn.ReLU()) for _ in range(6)]
    return nn.Sequential(*layers).train().to(memory_format=torch.channels_last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--side-px", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    nets = {label: stack(*style, options.channels) for label, style in STYLES.items()}
    x = torch.randn(options.batch, options.channels, options.side_px, options.side_px)
    x = x.contiguous(memory_format=torch.channels_last)
    times: dict[str, list[float]] = {label: [] for label in nets}
    for round_index in range(options.rounds + 1):
        for label, net in nets.items():
            began = time.perf_counter()
            net(x).square().mean().backward()
            if round_index:
                times[label].append(time.perf_counter() - began)
    medians = {label: statistics.median(values) for label, values in times.items()}
    ratios = {label: value / medians["plain"] for label, value in medians.items()}
    for label, ratio in ratios.items():
        print(f"{label:24} {medians[label] * 1e3:8.1f} ms  {ratio:.2f}x plain")
    print(json.dumps({"step_time_over_plain": ratios}))


if __name__ == "__main__":
    main()
