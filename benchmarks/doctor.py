"""Pictures per second of `detkit doctor data` against decoding alone, on generated JPEG files with COCO labels.

Decoding alone is one process a core that opens and decodes its share of the files as the doctor does, at an eighth of
the size where the format allows, and does nothing else; at full size for scale. Both take turns, the doctor with an
empty cache each time; medians, the ratio and how busy the cores were are printed.

    python benchmarks/doctor.py [--pictures 20000] [--rounds 3]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import simplejpeg

WIDTH, HEIGHT = 640, 480
OBJECTS = 7
DECODE = """
import sys
from pathlib import Path
from PIL import Image
shrink, start, step = map(int, sys.argv[2:])
for path in sorted(Path(sys.argv[1]).glob("*.jpg"))[start::step]:
    with Image.open(path) as picture:
        if shrink > 1:
            picture.draft("RGB", (picture.width // shrink, picture.height // shrink))
        picture.load()
"""


def write_pictures(root: Path, num: int) -> None:
    """`num` different JPEG files, four fifths of them labelled as train.json, the rest as val.json."""
    rng = np.random.default_rng(0)
    grain = rng.normal(0, 12, (HEIGHT * 2, WIDTH * 2, 3)).astype(np.int16)
    (root / "images").mkdir()
    for number in range(num):
        blobs = rng.integers(0, 256, (9, 12, 3), np.uint8)
        y, x = rng.integers(0, (HEIGHT, WIDTH)).tolist()
        pixels = cv2.resize(blobs, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC) + grain[y : y + HEIGHT, x : x + WIDTH]
        data = simplejpeg.encode_jpeg(np.clip(pixels, 0, 255).astype(np.uint8), quality=85, colorsubsampling="420")
        (root / "images" / f"{number:06d}.jpg").write_bytes(data)
    parts = {"train": range(num * 4 // 5), "val": range(num * 4 // 5, num)}
    for name, numbers in parts.items():
        images = [{"id": n + 1, "file_name": f"{n:06d}.jpg", "width": WIDTH, "height": HEIGHT} for n in numbers]
        rows = []
        for image in images:
            for x, y, w, h in rng.uniform((0, 0, 20, 20), (400, 300, 240, 180), (OBJECTS, 4)).round(2).tolist():
                row = {"id": len(rows) + 1, "image_id": image["id"], "category_id": len(rows) % 5 + 1, "iscrowd": 0}
                rows.append(row | {"bbox": [x, y, w, h], "area": w * h})
        categories = [{"id": i, "name": f"c{i}"} for i in range(1, 6)]
        text = json.dumps({"images": images, "annotations": rows, "categories": categories})
        (root / f"{name}.json").write_text(text)


def timed(commands: list[list[str]], environment: dict[str, str]) -> dict[str, float]:
    """Wall seconds of commands run at once, and the CPU seconds of them and their children."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [process.communicate()[0] for process in processes]
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if any(process.returncode for process in processes):
        raise SystemExit(f"a side failed: {outputs[0][-2000:]}")
    return {"s": wall, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "data"
        root.mkdir()
        write_pictures(root, chosen.pictures)
        results: dict[str, list[dict[str, float]]] = {"doctor": [], "decode": [], "decode at full size": []}
        for number in range(chosen.rounds):
            environment = os.environ | {"XDG_CACHE_HOME": f"{temporary}/cache-{number}"}
            doctor = [sys.executable, "-m", "detkit", "doctor", "data", str(root), "--json", "--sheet", f"{temporary}/sheet.png"]
            results["doctor"].append(timed([doctor], environment))
            for name, shrink in (("decode", 8), ("decode at full size", 1)):
                sides = [[sys.executable, "-c", DECODE, str(root / "images"), str(shrink), str(i), str(cores)] for i in range(cores)]
                results[name].append(timed(sides, environment))
    rates: dict[str, Any] = {name: chosen.pictures / median(row["s"] for row in rows) for name, rows in results.items()}
    busy = median(row["cpu_s"] / row["s"] / cores for row in results["doctor"])
    for name, rate in rates.items():
        print(f"{name}: {rate:.0f} pictures/s")
    print(f"doctor over decode alone: {rates['doctor'] / rates['decode']:.2f}; {cores} cores busy {busy:.0%}")
    print(json.dumps({"pictures_per_s": rates, "ratio": rates["doctor"] / rates["decode"], "busy": busy}))


if __name__ == "__main__":
    main()
