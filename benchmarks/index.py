"""Reading COCO labels: detkit's index against pycocotools' COCO() with its reads of every picture.

Each side runs in a process of its own, in turn; prints times, peak memory and their ratios, the second start, how the
cost grows, and how much memory loader processes add.

    python benchmarks/index.py [--pictures 118000] [--objects 860000] [--rounds 3] [--times-ten]
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

DETKIT = """
import json, sys, time
from detkit.data.dataset import load_dataset
from detkit.deploy.machine import peak_memory_mb
from detkit.recipe.schema import DataSettings
began = time.perf_counter()
data = load_dataset(DataSettings(root=sys.argv[1], train=("train",), images=".", verify="off", format="coco"), "train")
count = sum(len(image.boxes_xyxy) for image in data.images) if sys.argv[2] == "walk" else int(data.images.num_objects().sum())
print(json.dumps({"s": time.perf_counter() - began, "mb": peak_memory_mb(), "count": count}))
"""
PYCOCOTOOLS = """
import contextlib, io, json, sys, time
from pycocotools.coco import COCO
from detkit.deploy.machine import peak_memory_mb
began = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    data = COCO(sys.argv[1] + "/train.json")
count = 0
for image in data.getImgIds():
    data.loadImgs(image)
    count += len(data.loadAnns(data.getAnnIds(imgIds=[image])))
print(json.dumps({"s": time.perf_counter() - began, "mb": peak_memory_mb(), "count": count}))
"""


def write_labels(path: Path, num_pictures: int, num_objects: int) -> None:
    """COCO instances with boxes, as large as asked for; a record at a time."""
    rng = random.Random(0)
    with path.open("w") as file:
        images = ({"id": 3 * i + 7, "file_name": f"{i:012d}.jpg", "width": 640, "height": 480} for i in range(num_pictures))
        file.write('{"images": [' + ", ".join(map(json.dumps, images)) + '], "annotations": [')
        for number in range(num_objects):
            w, h = round(rng.uniform(5, 300), 2), round(rng.uniform(5, 200), 2)
            row = {
                "area": round(w * h * 0.7, 3),
                "iscrowd": 0,
                "image_id": 3 * rng.randrange(num_pictures) + 7,
                "bbox": [round(rng.uniform(0, 640 - w), 2), round(rng.uniform(0, 480 - h), 2), w, h],
                "category_id": rng.randrange(1, 81),
                "id": number + 1,
            }
            file.write((", " if number else "") + json.dumps(row))
        file.write('], "categories": ' + json.dumps([{"id": i, "name": f"c{i}"} for i in range(1, 81)]) + "}")


def run(code: str, root: Path, cache: Path, mode: str = "") -> dict[str, float]:
    """What `code` prints; `mb` is the larger of its own peak and of what it and its children were seen to hold together."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    process = subprocess.Popen([sys.executable, "-c", code, str(root), mode], env=environment, stdout=subprocess.PIPE, text=True)
    together = 0.0
    while process.poll() is None:
        together = max(together, tree_mb(process.pid))
        time.sleep(0.02)
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a side ended with {process.returncode}")
    result = json.loads(text)
    return result | {"mb": max(result["mb"], together)}


def tree_mb(pid: int) -> float:
    """Proportional set size, MiB, of a process and its children; 0 where they have just ended."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return proportional_mb(pid) + sum(proportional_mb(int(child)) for child in children)
    except (OSError, StopIteration):
        return 0.0


def growth_of_workers(root: Path, cache: Path, *, num_workers: int = 4, steps: int = 200) -> float:
    """Proportional set size, MiB, that loader processes gain while they read `steps` batches of labels."""
    os.environ["XDG_CACHE_HOME"] = str(cache)
    from torch.utils.data import DataLoader

    from detkit.data.dataset import load_dataset
    from detkit.recipe.schema import DataSettings

    data = load_dataset(DataSettings(root=str(root), train=("train",), images=".", verify="off", format="coco"), "train")

    class Labels:
        def __len__(self) -> int:
            return len(data.images)

        def __getitem__(self, index: int) -> int:
            return len(data.images[index].boxes_xyxy)

    loader = DataLoader(Labels(), batch_size=64, shuffle=True, num_workers=num_workers, multiprocessing_context="fork")  # type: ignore[arg-type]
    batches = iter(loader)
    sizes = []
    for step in range(steps):
        next(batches)
        if step in (10, steps - 1):
            pids = [w.pid for w in batches._workers]  # type: ignore[attr-defined]
            sizes.append(sum(proportional_mb(pid) for pid in pids))
    return sizes[1] - sizes[0]


def proportional_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=118_000)
    parser.add_argument("--objects", type=int, default=860_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times-ten", action="store_true", help="detkit alone on ten times as much, too")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, sides = Path(folder), {"detkit": [], "pycocotools": []}
        write_labels(root / "train.json", chosen.pictures, chosen.objects)
        for number in range(chosen.rounds):
            sides["detkit"].append(run(DETKIT, root, root / f"cache{number}"))
            sides["pycocotools"].append(run(PYCOCOTOOLS, root, root))
        again = run(DETKIT, root, root / "cache0")
        first, peer = ({k: median(row[k] for row in rows) for k in ("s", "mb")} for rows in sides.values())
        assert {row["count"] for rows in sides.values() for row in rows} == {chosen.objects}
        print(f"{chosen.pictures} pictures, {chosen.objects} objects, medians of {chosen.rounds}")
        print(f"first start: detkit {first['s']:.2f} s, pycocotools {peer['s']:.2f} s, {peer['s'] / first['s']:.1f} times faster")
        print(f"peak memory: detkit {first['mb']:.0f} MiB, pycocotools {peer['mb']:.0f} MiB, ratio {first['mb'] / peer['mb']:.2f}")
        print(f"second start: {again['s']:.2f} s, {again['mb']:.0f} MiB")
        values = {"first": first, "pycocotools": peer, "again": again, "growth_mb": growth_of_workers(root, root / "cache0")}
        print(f"four loader processes over 200 steps: {values['growth_mb']:+.1f} MiB proportional set size")
        if chosen.times_ten:
            large = root / "large"
            large.mkdir()
            write_labels(large / "train.json", 10 * chosen.pictures, 10 * chosen.objects)
            values["ten"] = run(DETKIT, large, root / "cache-large")
            values["ten_again"] = run(DETKIT, large, root / "cache-large")
            ten = values["ten"]
            print(
                f"ten times as much: first {ten['s']:.1f} s ({ten['s'] / first['s']:.1f} times), {ten['mb']:.0f} MiB, "
                f"second {values['ten_again']['s']:.2f} s"
            )
            slopes = [side["s"] / count * 1e6 for side, count in ((first, chosen.objects), (ten, 10 * chosen.objects))]
            print(f"slope: {slopes[0]:.2f} s a million objects, ten times larger {slopes[1]:.2f}")
    print(json.dumps(values))


if __name__ == "__main__":
    main()
