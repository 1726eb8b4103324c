"""YOLO folders: a text file a picture, one object a line, as boxes or polygons in fractions of the picture."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from detkit.core.errors import UserError
from detkit.data.content import is_there
from detkit.data.folders import pictures_below, text_of
from detkit.data.images import oriented_size
from detkit.data.labels import Labels
from detkit.recipe.schema import DataSettings

CONFIGS = ("data.yaml", "dataset.yaml", "config.yaml", "data.yml", "dataset.yml")
NAME_FILES = ("classes.txt", "obj.names", "data.names", "labels.txt")
# Fractions above this are not fractions; a part in which this share of lines has one is in pixels.
LARGEST_FRACTION = 1.5
PIXEL_SHARE = 0.3


@dataclass
class Lines:
    """Objects of a part before they are scaled: picture, class, fractions as box or polygon, file and line."""

    rows: list[tuple[int, int, list[float], int, int]] = field(default_factory=list)


def read_yolo(root: Path, parts: Sequence[str], settings: DataSettings) -> Labels:
    """Pictures of `parts` with the objects of their text files.

    A part is a key of data.yaml (a folder, a list of folders or a .txt list), or a folder below images/ or root;
    `.` is the root itself. A line is `class cx cy w h` or `class x1 y1 x2 y2 ...` of three points or more; files may mix
    both. The text file lies in the folder that has `labels` for the last `images` of the picture's path, or beside it.
    Classes are those of data.yaml or classes.txt, else the numbers that occur.
    """
    labels = Labels("line")
    config = configuration(root, settings)
    lines = Lines()
    num_files = 0
    for part in parts:
        pictures = part_pictures(root, config, part, settings)
        known = {Path(path) for path in labels.paths}
        pictures = [path for path in pictures if path not in known]
        expected = {label_path(picture, root, part, settings): picture for picture in pictures}
        for path, picture in expected.items():
            num_files += add_picture(path, picture, labels=labels, lines=lines)
        for folder in sorted({path.parent for path in expected}):
            for path in sorted(folder.glob("*.txt")):
                if path not in expected and path.name not in NAME_FILES and path.parent != root / settings.labels:
                    labels.found("label without picture", str(path), "there is no picture of that name")
    if labels.paths and not num_files:
        first = label_path(Path(labels.paths[0]), root, parts[0], settings)
        labels.found("no labels", str(root), f"none of {len(labels.paths)} pictures has a label file; the first would be {first}")
        labels.findings = [finding for finding in labels.findings if finding.kind != "picture without label"]
    add_classes(labels, config, root / settings.labels, {label for _, label, *_ in lines.rows})
    add_objects(labels, lines)
    return labels


def configuration(root: Path, settings: DataSettings) -> dict[str, Any]:
    """Content of data.yaml in root, in data.labels or above it, or an empty dict. Raises UserError where it cannot be read."""
    base = root / settings.labels
    places = [folder / name for folder in (root, base, base.parent) for name in CONFIGS]
    path = next((place for place in places if place.is_file() and place.is_relative_to(root)), None)
    if path is None:
        return {}
    try:
        content = yaml.safe_load(text_of(path))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a mapping of train, val and names")
    return content


def part_pictures(root: Path, config: dict[str, Any], part: str, settings: DataSettings) -> list[Path]:
    """Pictures of a part in order. Raises UserError naming where it looked."""
    base = root / str(config["path"]) if config.get("path") and (root / str(config["path"])).is_dir() else root
    key = "valid" if part == "val" and "val" not in config and "valid" in config else part
    values = config.get(key) or []
    values = [str(value) for value in (values if isinstance(values, list) else [values])]
    if values and (not settings.images or all(place_of(base, root, value) is not None for value in values)):
        return [picture for value in values for picture in pictures_of(base, root, value)]
    if settings.images:
        inside = root / settings.images / part
        return pictures_of(root, root, f"{settings.images}/{part}" if inside.is_dir() else settings.images)
    places = [root / "images" / part, root / part / "images", root / part, root / f"{part}.txt"]
    if part == ".":
        places = [root / "images", root]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        keys = sorted(str(key) for key in config if key in ("train", "val", "valid", "test"))
        raise UserError(
            f"no part {part!r} in {root}: {', '.join(map(str, places))} do not exist",
            hint=f"data.yaml has {', '.join(keys) or 'no parts'}; --set data.train=[...]",
        )
    return pictures_of(found.parent, root, found.name)


def pictures_of(base: Path, root: Path, value: str) -> list[Path]:
    """Pictures of a folder or of a list of paths."""
    place = place_of(base, root, value)
    if place is None:
        raise UserError(f"{base / value} does not exist", hint="mend the path in data.yaml")
    if place.is_dir():
        return pictures_below(place)
    if place.suffix.lower() != ".txt":
        raise UserError(f"{place} is neither a folder nor a .txt list of pictures")
    listed = [line.strip() for line in text_of(place).splitlines() if line.strip()]
    return [next((p for p in (place.parent / line, base / line, root / line) if p.is_file()), place.parent / line) for line in listed]


def place_of(base: Path, root: Path, value: str) -> Path | None:
    """What a path of data.yaml means; `../images/val` is often written as seen from a folder that is not there."""
    return next((p for p in (base / value, root / value, root / value.removeprefix("../")) if p.exists()), None)


def label_path(picture: Path, root: Path, part: str, settings: DataSettings) -> Path:
    """Where the labels of a picture lie: in data.labels, or below `labels` for the last folder `images`, or beside it."""
    if settings.labels:
        base, pictures = root / settings.labels, root / settings.images
        places = [base / part / f"{picture.stem}.txt", base / f"{picture.stem}.txt"]
        if picture.is_relative_to(pictures):
            places.insert(0, base / picture.relative_to(pictures).with_suffix(".txt"))
        return next((place for place in places if place.is_file()), places[0])
    parts = list(picture.parts)
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] == "images":
            elsewhere = Path(*parts[:index], "labels", *parts[index + 1 :]).with_suffix(".txt")
            return picture.with_suffix(".txt") if picture.with_suffix(".txt").is_file() and not elsewhere.is_file() else elsewhere
    return picture.with_suffix(".txt")


def add_picture(path: Path, picture: Path, *, labels: Labels, lines: Lines) -> bool:
    """Append a picture and the lines of its label file; whether there is one."""
    image = labels.add_image(picture, len(labels.paths) + 1)
    if not is_there(path):
        labels.found("picture without label", str(picture), f"there is no {path}")
        return False
    file = labels.add_file(path)
    try:
        text = text_of(path)
    except UserError as error:
        labels.found("unread label file", str(path), error.what)
        return True
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        row = parsed(line, f"{path}:{number}", labels)
        if row is not None:
            lines.rows.append((image, row[0], row[1], file, number))
    return True


def parsed(line: str, place: str, labels: Labels) -> tuple[int, list[float]] | None:
    """Class and fractions of a line, or None after naming what is wrong with it."""
    shown = line.strip()[:80]
    if "," in line or ";" in line:
        labels.found("unread line", place, f"{shown!r}: values are separated by spaces and have decimal points, not commas")
        return None
    name, *texts = line.split()
    try:
        values = [float(text) for text in texts]
    except ValueError:
        labels.found("unread line", place, f"{shown!r} is not a class followed by numbers")
        return None
    try:
        label = float(name)
    except ValueError:
        labels.found("unknown class", place, f"class {name[:40]!r} is a name; YOLO labels have its number")
        return None
    if not 0 <= label < 2**31 or label != math.floor(label):
        labels.found("unknown class", place, f"class {name[:40]} is not a number of a class")
        return None
    if len(values) == 4 or (len(values) >= 6 and len(values) % 2 == 0):
        return int(label), values
    if len(values) == 5:
        labels.found("unread line", place, f"{shown!r} has five values after the class; is the last a confidence?")
    elif len(values) > 5:
        labels.found("odd polygon", place, f"{len(values)} coordinates do not pair up")
    else:
        labels.found("unread line", place, f"{shown!r} has {len(values)} values after the class; a box has 4, a polygon 6 or more")
    return None


def add_classes(labels: Labels, config: dict[str, Any], root: Path, used: set[int]) -> None:
    """Class names by number: those of data.yaml or of a list in `root`, else the numbers up to the largest that is `used`."""
    names = config.get("names", config.get("classes"))
    if isinstance(names, dict):
        labels.categories = {int(key): str(name) for key, name in names.items() if str(key).isdigit() and len(str(key)) < 10}
    elif isinstance(names, list):
        labels.categories = {number: str(name) for number, name in enumerate(names)}
    else:
        path = next((root / name for name in NAME_FILES if (root / name).is_file()), None)
        if path is not None:
            rows = [line.strip() for line in text_of(path).splitlines() if line.strip()]
            labels.categories = dict(enumerate(rows))
        else:
            count = config["nc"] if isinstance(config.get("nc"), int) else max(used, default=-1) + 1
            labels.categories = {number: str(number) for number in range(min(count, 100_000))}
    declared = config.get("nc")
    if isinstance(declared, int) and declared != len(labels.categories):
        labels.found("class count", str(root), f"nc is {declared}, but there are {len(labels.categories)} names")
    labels.categories = dict(sorted(labels.categories.items(), key=lambda item: str(item[0]).zfill(10)))


def add_objects(labels: Labels, lines: Lines) -> None:
    """Scale fractions by the sizes of their pictures; coordinates in pixels are one finding for the part."""
    in_pixels = [row for row in lines.rows if any(abs(value) > LARGEST_FRACTION for value in row[2] if math.isfinite(value))]
    if len(in_pixels) > 2 and len(in_pixels) >= PIXEL_SHARE * len(lines.rows):
        _, _, values, file, number = in_pixels[0]
        what = f"{len(in_pixels)} of {len(lines.rows)} lines have values like {max(values):g}, which are not fractions of the picture"
        labels.found("pixel units", f"{labels.files[file]}:{number}", what)
        return
    for image, label, values, file, number in lines.rows:
        width, height = size_of(labels, image)
        if len(values) == 4:
            cx, cy, w, h = values
            box = ((cx - w / 2) * width, (cy - h / 2) * height, (cx + w / 2) * width, (cy + h / 2) * height)
            labels.add_object(image, label, box, file=file, number=number)
            continue
        xs, ys = [x * width for x in values[0::2]], [y * height for y in values[1::2]]
        flat = [value for point in zip(xs, ys, strict=True) for value in point]
        mask = json.dumps([[round(value, 3) for value in flat]]).encode() if all(map(math.isfinite, flat)) else b""
        box = (min(xs), min(ys), max(xs), max(ys))
        labels.add_object(image, label, box, file=file, number=number, mask=mask)


def size_of(labels: Labels, image: int) -> tuple[int, int]:
    """Width and height of a picture, from its header; (0, 0) where it cannot be read, which its check names."""
    if labels.sizes_wh[image] == (0, 0):
        try:
            labels.sizes_wh[image] = oriented_size(Path(labels.paths[image]))
        except UserError:
            return (0, 0)
    return labels.sizes_wh[image]
