"""Training samples per second of one process with one thread: decode, augment, collate; nothing kept in memory.

detkit against torchvision v2's reference detection transforms, v2 transforms as D-FINE's recipes use them, and
Ultralytics' training data set where an interpreter that has it is named (its own process, run as an outside peer). All
sides take turns; medians of the rounds and their ratios are printed, with and without mosaic, on a COCO folder and on
12-megapixel JPEGs made from its pictures.

    python benchmarks/loader.py --root PATH/TO/COCO128 [--part instances_train2017] [--ultralytics-python PATH] [--rounds 3]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from PIL import Image

from detkit.data.dataset import Dataset, load_dataset
from detkit.data.decode import read_at_least
from detkit.data.geometry import Geometry
from detkit.data.training import TrainingSamples
from detkit.recipe.schema import AugmentSettings, DataSettings
from detkit.train.loader import EpochSamples

SIZE_PX = 640
BATCH = 16
ULTRALYTICS = """
import json, sys, time
import torch
torch.set_num_threads(1)
import cv2
cv2.setNumThreads(1)
from ultralytics.cfg import get_cfg
from ultralytics.data import YOLODataset
folder, size, mosaic, num, batch = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
hyp = get_cfg(overrides=dict(mosaic=mosaic, mixup=0.0, copy_paste=0.0, degrees=0.0, shear=0.0, perspective=0.0, translate=0.1,
    scale=0.5, fliplr=0.5, hsv_h=0.015, hsv_s=0.5, hsv_v=0.3))
data = YOLODataset(img_path=folder, imgsz=size, augment=True, hyp=hyp, cache=False, batch_size=batch, stride=32,
    data=dict(names={i: str(i) for i in range(80)}, nc=80, channels=3))
def epoch(start):
    for first in range(start, start + num, batch):
        YOLODataset.collate_fn([data[i % len(data)] for i in range(first, first + batch)])
epoch(0)
while True:
    if sys.stdin.readline().strip() != "go":
        break
    began = time.perf_counter()
    epoch(0)
    print("RESULT", num / (time.perf_counter() - began), flush=True)
"""


def large_pictures(dataset: Dataset, folder: Path, count: int = 16) -> Dataset:
    """Pictures of 4000 x 3000 px from those of a data set, with their boxes."""
    images = []
    folder.mkdir(parents=True)
    for image in [dataset.images[i] for i in range(count)]:
        path = folder / f"{image.image_id}.jpg"
        grain = np.random.default_rng(0).normal(0, 6, (3000, 4000, 1))
        pixels = np.asarray(Image.open(image.path).convert("RGB").resize((4000, 3000), Image.Resampling.BICUBIC), np.int16)
        Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8)).save(path, quality=85)
        scale = np.float32([4000 / image.width, 3000 / image.height] * 2)
        boxes = image.boxes_xyxy * scale
        images.append(type(image)(path, image.image_id, 4000, 3000, boxes, image.labels, image.crowd, image.areas_px))
    return Dataset(tuple(images), dataset.classes, dataset.category_ids)


def detkit_side(dataset: Dataset, mosaic: float, num: int) -> Callable[[], float]:
    settings = AugmentSettings(mosaic=mosaic, scale=(0.5, 1.5), translate=0.1)
    samples = EpochSamples(TrainingSamples(dataset, Geometry(SIZE_PX), settings, seed=0, cache_mb=0), num_workers=0)

    def run() -> float:
        began = time.perf_counter()
        for first in range(0, num, BATCH):
            samples.__getitems__([i % len(dataset.images) for i in range(first, first + BATCH)])
        samples.epoch += 1
        return num / (time.perf_counter() - began)

    return run


def torchvision_side(dataset: Dataset, steps: list[Any], num: int) -> Callable[[], float]:
    """torchvision's decoder and v2 transforms on tensors and box types."""
    from torchvision import tv_tensors
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    transform = v2.Compose(steps)

    def one(index: int) -> torch.Tensor:
        image = dataset.images[index % len(dataset.images)]
        pixels = tv_tensors.Image(decode_image(str(image.path), ImageReadMode.RGB))
        boxes = tv_tensors.BoundingBoxes(torch.from_numpy(image.boxes_xyxy), format="XYXY", canvas_size=(image.height, image.width))
        return transform(pixels, {"boxes": boxes, "labels": torch.from_numpy(image.labels)})[0]

    def run() -> float:
        began = time.perf_counter()
        for first in range(0, num, BATCH):
            torch.stack([one(i) for i in range(first, first + BATCH)])
        return num / (time.perf_counter() - began)

    return run


def v2_steps(kind: str) -> list[Any]:
    """Transforms as in torchvision's references/detection (`ssd` with a fixed size), and as in D-FINE's training recipes."""
    from torchvision.transforms import v2

    if kind == "torchvision v2":
        steps = [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=114.0), v2.RandomIoUCrop(), v2.RandomHorizontalFlip()]
    else:
        steps = [
            v2.RandomPhotometricDistort(p=0.5),
            v2.RandomZoomOut(fill=0),
            v2.RandomApply([v2.RandomIoUCrop()], p=0.8),
            v2.SanitizeBoundingBoxes(min_size=1),
            v2.RandomHorizontalFlip(),
        ]
    return [*steps, v2.Resize((SIZE_PX, SIZE_PX)), v2.SanitizeBoundingBoxes(min_size=1), v2.ToDtype(torch.float32, scale=True)]


class Peer:
    """Ultralytics in a process of another interpreter, told when to run."""

    def __init__(self, python: str, folder: Path, mosaic: float, num: int) -> None:
        command = [python, "-c", ULTRALYTICS, str(folder), str(SIZE_PX), str(mosaic), str(num), str(BATCH)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ)

    def __call__(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("RESULT"):
                return float(line.split()[1])
        raise SystemExit("the Ultralytics process ended without a result; does its interpreter have it?")

    def close(self) -> None:
        self._process.kill()


def yolo_copy(dataset: Dataset, folder: Path) -> Path:
    """The data set as linked pictures and YOLO text files."""
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    for image in dataset.images:
        (folder / "images" / image.path.name).symlink_to(image.path.resolve())
        low, high = image.boxes_xyxy[:, :2], image.boxes_xyxy[:, 2:]
        rows = np.concatenate([(low + high) / 2, high - low], 1) / np.float32([image.width, image.height] * 2)
        lines = [f"{label} " + " ".join(f"{v:.6f}" for v in row) for label, row in zip(image.labels, rows, strict=True)]
        (folder / "labels" / f"{image.path.stem}.txt").write_text("\n".join(lines))
    return folder / "images"


def where_time_goes(dataset: Dataset, num: int) -> dict[str, float]:
    """Milliseconds a sample spends in decoding, and in all of it, without mosaic."""
    began = time.perf_counter()
    for index in range(num):
        read_at_least(dataset.images[index % len(dataset.images)].path, SIZE_PX)
    decode = (time.perf_counter() - began) / num * 1e3
    return {"decode_ms": decode, "whole_ms": 1e3 / detkit_side(dataset, 0.0, num)()}


def compared(dataset: Dataset, folder: Path, chosen: argparse.Namespace, *, mosaic: float, num: int) -> dict[str, float]:
    """Medians of samples per second by side."""
    sides: dict[str, Callable[[], float]] = {"detkit": detkit_side(dataset, mosaic, num)}
    if not mosaic:
        sides |= {kind: torchvision_side(dataset, v2_steps(kind), num) for kind in ("torchvision v2", "D-FINE-style v2")}
    peer = Peer(chosen.ultralytics_python, folder, mosaic, num) if chosen.ultralytics_python else None
    if peer is not None:
        sides["Ultralytics"] = peer
    for side in sides.values():
        # Memory is first touched and files are first read here.
        side()
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(chosen.rounds):
        for name, side in sides.items():
            rates[name].append(side())
    if peer is not None:
        peer.close()
    return {name: median(values) for name, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--part", default="instances_train2017")
    parser.add_argument("--ultralytics-python", default="")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not chosen.ultralytics_python:
        print("Ultralytics is not measured: name an interpreter that has it with --ultralytics-python", file=sys.stderr)
    small = load_dataset(DataSettings(root=chosen.root, train=(chosen.part,), on_bad="skip"), "train")
    values: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        large = large_pictures(small, Path(temporary) / "large")
        for name, dataset, num in (("coco", small, 128), ("12 MP", large, 32)):
            folder = yolo_copy(dataset, Path(temporary) / f"yolo-{name.split()[0]}")
            for mosaic in (0.0, 1.0):
                rates = compared(dataset, folder, chosen, mosaic=mosaic, num=num)
                best = max([rate for side, rate in rates.items() if side != "detkit"], default=float("nan"))
                values[f"{name}, mosaic {mosaic:g}"] = rates
                shown = ", ".join(f"{side} {rate:.1f}" for side, rate in rates.items())
                print(f"{name}, mosaic {mosaic:g}: {shown} samples/s; detkit over the best other {rates['detkit'] / best:.2f}")
            values[f"{name}, time"] = where_time_goes(dataset, num)
            print(f"{name}: {', '.join(f'{k} {v:.2f}' for k, v in values[f'{name}, time'].items())}")
    print(json.dumps(values))


if __name__ == "__main__":
    main()
