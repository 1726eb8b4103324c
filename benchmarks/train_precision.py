"""Training throughput of bf16 against fp32, channels-last, interleaved on one cached batch.

    python benchmarks/train_precision.py --size n --block dbb

Where the CPU has no bf16 matrix units (AMX or AVX512-BF16) the ratio is far below one; the script prints what it has.
"""

import argparse
import json
import statistics
import time

import torch

from detkit.models.build import build_detector
from detkit.recipe.schema import ModelSettings
from detkit.train.device import autocast
from detkit.train.evaluate import anchor_centres_for
from detkit.train.loss import detection_loss

NUM_CLASSES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="n")
    parser.add_argument("--block", default="dbb")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size-px", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = build_detector(ModelSettings(size=options.size, block=options.block), NUM_CLASSES)
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side, batch = options.image_size_px, options.batch
    images = torch.rand(batch, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    corner = torch.rand(batch, 15, 2, device=device) * side * 0.7
    objects = torch.cat([corner, corner + side * 0.15], -1)
    labels = torch.randint(0, NUM_CLASSES, (batch, 15), device=device)
    valid = torch.ones(batch, 15, dtype=torch.bool, device=device)
    centres = anchor_centres_for(side).to(device)

    def step(precision: str) -> float:
        began = time.perf_counter()
        with autocast(device, precision):
            outputs = model(images)
        detection_loss(outputs, centres, objects, labels, valid_BM=valid).total.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    times: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for name in times:
        step(name)
    for _ in range(options.rounds):
        for name in times:
            times[name].append(step(name))
    rates = {name: batch / statistics.median(values) for name, values in times.items()}
    ratio = rates["bf16"] / rates["fp32"]
    capability = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else torch.cuda.get_device_name()
    print(f"{capability}: fp32 {rates['fp32']:.1f}, bf16 {rates['bf16']:.1f} images/s, ratio {ratio:.2f}")
    print(json.dumps({"device": capability, "images_per_s": rates, "ratio": ratio}))


if __name__ == "__main__":
    main()
