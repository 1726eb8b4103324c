"""Throughput of the whole training loop, data included, against the same step on one cached batch, interleaved by epoch.

python benchmarks/train_loop.py recipes/bccd.yaml --set data.root=PATH
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from detkit.data.dataset import load_dataset
from detkit.recipe.load import load_recipe
from detkit.train.device import placement_from_environment
from detkit.train.evaluate import anchor_centres_for
from detkit.train.loop import forward, step
from detkit.train.stage import prepared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    recipe = load_recipe(options.recipe, changes=options.changes)
    place = placement_from_environment()
    training = load_dataset(recipe.data, "train")
    trainee, course = prepared(Path(tempfile.mkdtemp()), recipe, place, training=training, validation=load_dataset(recipe.data, "val"))
    centres = anchor_centres_for(recipe.data.image_size_px).to(place.device)
    trainee.model.train()

    def one(batch: object) -> None:
        losses = forward(trainee.model, batch, centres, course=course)  # type: ignore[arg-type]
        losses.total.backward()
        step(trainee, clip_norm=recipe.train.clip_norm)

    def endless():
        epoch = 0
        while True:
            yield from course.loader.epoch(epoch, closed=False)
            epoch += 1

    batches = endless()
    cached = next(batches)
    one(cached)
    for _ in range(len(course.loader)):
        next(batches)  # fills the picture cache
    times: dict[str, list[float]] = {"loop": [], "cached": []}
    for _ in range(options.rounds):
        for name, values in times.items():
            for _ in range(options.steps):
                began = time.perf_counter()
                one(next(batches) if name == "loop" else cached)
                values.append(time.perf_counter() - began)
    size = cached.images_BHW3.shape[0]
    rates = {name: size / statistics.mean(values) for name, values in times.items()}
    ratio = rates["loop"] / rates["cached"]
    print(f"whole loop {rates['loop']:.1f}, cached batch {rates['cached']:.1f} images/s, ratio {ratio:.3f}")
    print(json.dumps({"images_per_s": rates, "ratio": ratio, "torch_threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
