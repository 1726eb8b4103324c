"""Exports of annotation tools: LabelMe JSON, CVAT for images 1.1 and OpenImages CSV, with their pictures in one folder."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detkit.core.errors import UserError
from detkit.data.folders import part_folder, pictures_by_stem, text_of
from detkit.data.images import oriented_size
from detkit.data.labels import Labels
from detkit.data.voc import parsed_xml
from detkit.recipe.schema import DataSettings

Point = tuple[float, float]


def read_labelme(root: Path, parts: Sequence[str], settings: DataSettings) -> Labels:
    """LabelMe: one JSON a picture in `data.labels`/PART (`.` for the folder itself); pictures beside it or in data.images.

    Rectangles, polygons and circles are read; lines and points have no area and are named.
    """
    labels = Labels("object")
    rows: list[tuple[str, int, list[Point], int, int]] = []
    for part in parts:
        folder = part_folder(root / settings.labels, part)
        pictures = pictures_by_stem(root / settings.images if settings.images else folder)
        for path in sorted(folder.glob("*.json")):
            add_labelme(path, pictures, labels=labels, rows=rows)
    name_classes(labels, [name for name, *_ in rows])
    for name, image, points, file, number in rows:
        add_shape(labels, image, name, points, file=file, number=number)
    return labels


def add_labelme(path: Path, pictures: dict[str, Path], *, labels: Labels, rows: list[Any]) -> None:
    """Append the picture of one file, and its shapes to `rows`."""
    file = labels.add_file(path)
    try:
        content = json.loads(text_of(path))
        shapes, name = content["shapes"], str(content.get("imagePath") or path.name)
        size = claimed(content.get("imageWidth"), content.get("imageHeight"))
        listed = list(shapes)
    except (UserError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        labels.found("unread label file", str(path), f"not LabelMe JSON: {error}")
        return
    picture = pictures.get(Path(name.replace("\\", "/")).stem) or pictures.get(path.stem)
    if picture is None:
        labels.found("missing picture", str(path), f"there is no picture {name}")
        return
    image = labels.add_image(picture, len(labels.paths) + 1, size_wh=size)
    for number, shape in enumerate(listed, start=1):
        points = shape_points(shape)
        if points is None:
            kind = shape.get("shape_type") if isinstance(shape, dict) else shape
            labels.found("no box", f"{path}: object {number}", f"shape {str(kind)[:40]!r} is no rectangle, polygon or circle")
        else:
            rows.append((str(shape.get("label", "")), image, points, file, number))


def claimed(width: Any, height: Any) -> tuple[int, int]:
    """The size that a file gives for its picture; (0, 0) where it gives none."""
    texts = (str(width), str(height))
    if not all(text.isdigit() and 0 < len(text) < 10 for text in texts):
        return (0, 0)
    return (int(texts[0]), int(texts[1])) if "0" not in texts else (0, 0)


def shape_points(shape: Any) -> list[Point] | None:
    """Corners of a LabelMe shape: two of a rectangle, all of a polygon, those of a circle's box; None for others."""
    try:
        points = [(float(x), float(y)) for x, y in shape["points"]]
        kind = shape.get("shape_type") or "polygon"
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    if kind == "circle" and len(points) == 2:
        (x, y), radius = points[0], math.dist(*points)
        return [(x - radius, y - radius), (x + radius, y + radius)]
    if kind == "rectangle" and len(points) in (2, 4):
        return [(min(x for x, _ in points), min(y for _, y in points)), (max(x for x, _ in points), max(y for _, y in points))]
    return points if kind == "polygon" and len(points) >= 3 else None


def read_cvat(root: Path, parts: Sequence[str], settings: DataSettings) -> Labels:
    """CVAT for images 1.1: `data.labels`/PART.xml, or annotations.xml of the part's folder; pictures in data.images."""
    labels = Labels("object")
    rows: list[tuple[str, int, list[Point], int, int]] = []
    declared: list[str] = []
    for part in parts:
        path = cvat_file(root / settings.labels, part)
        pictures = pictures_by_stem(root / settings.images if settings.images else path.parent)
        tree = parsed_xml(path)
        file = labels.add_file(path)
        declared += [(item.findtext("name") or "").strip() for item in tree.iter("label") if item.find("name") is not None]
        number = 0
        for item in tree.iter("image"):
            picture = pictures.get(Path(item.get("name", "")).stem)
            if picture is None:
                labels.found("missing picture", str(path), f"there is no picture {item.get('name')!r}")
                continue
            size = claimed(item.get("width"), item.get("height"))
            image = labels.add_image(picture, len(labels.paths) + 1, size_wh=size)
            for shape in item:
                number += 1
                if (points := cvat_points(shape)) is not None:
                    rows.append((shape.get("label", ""), image, points, file, number))
                else:
                    labels.found("no box", f"{path}: object {number}", f"{shape.tag} is no box or polygon of numbers")
    name_classes(labels, declared or [name for name, *_ in rows])
    for name, image, points, file, number in rows:
        add_shape(labels, image, name, points, file=file, number=number)
    return labels


def cvat_file(base: Path, part: str) -> Path:
    places = [base / f"{part}.xml", base / part / "annotations.xml", base / "annotations.xml"]
    found = next((place for place in (places if part != "." else places[2:]) if place.is_file()), None)
    if found is None:
        raise UserError(f"no CVAT file for part {part!r}: {', '.join(map(str, places))} do not exist", hint="--set data.train=[...]")
    return found


def cvat_points(shape: Any) -> list[Point] | None:
    """Corners of a box or polygon element; None where it is another shape or not of numbers."""
    try:
        if shape.tag == "box":
            x1, y1, x2, y2 = (float(shape.get(side, "")) for side in ("xtl", "ytl", "xbr", "ybr"))
            return [(x1, y1), (x2, y2)]
        if shape.tag == "polygon":
            return [(float(x), float(y)) for x, y in (pair.split(",") for pair in shape.get("points", "").split(";"))]
    except ValueError:
        return None
    return None


def read_openimages(root: Path, parts: Sequence[str], settings: DataSettings) -> Labels:
    """OpenImages: `data.labels`/PART.csv with ImageID, LabelName, XMin, XMax, YMin, YMax in fractions; IsGroupOf is a crowd."""
    labels = Labels("line")
    rows: list[tuple[dict[str, str], int, int]] = []
    for part in parts:
        base = root / settings.labels
        path = next((p for p in (base / f"{part}.csv", base / part) if p.is_file()), None)
        if path is None:
            there = sorted(p.stem for p in base.glob("*.csv"))
            raise UserError(f"no {base / part}.csv", hint=f"there are: {', '.join(there) or 'none'}; --set data.train=[...]")
        file = labels.add_file(path)
        reader = csv.DictReader(text_of(path).splitlines())
        try:
            rows += [(row, file, number) for number, row in enumerate(reader, start=2)]
        except csv.Error as error:
            raise UserError(f"{path} is not CSV: {error}") from error
    name_classes(labels, [row.get("LabelName") or "" for row, _, _ in rows])
    pictures = pictures_by_stem(root / settings.images if settings.images else root / settings.labels)
    images: dict[Path, int] = {}
    for row, file, number in rows:
        add_csv_row(row, pictures, images, file=file, number=number, labels=labels)
    return labels


def add_csv_row(
    row: dict[str, str], pictures: dict[str, Path], images: dict[Path, int], *, file: int, number: int, labels: Labels
) -> None:
    """Append one box of an OpenImages file, and its picture where it is new."""
    place = f"{labels.files[file]}:{number}"
    name = row.get("ImageID") or ""
    picture = pictures.get(name) or pictures.get(Path(name).stem)
    if picture is None:
        labels.found("missing picture", place, f"there is no picture {name!r}")
        return
    try:
        sides = [float((row.get(key) or "").replace(",", ".")) for key in ("XMin", "YMin", "XMax", "YMax")]
    except ValueError:
        labels.found("no box", place, f"XMin, YMin, XMax, YMax are {[row.get(k) for k in ('XMin', 'YMin', 'XMax', 'YMax')]}")
        return
    if picture not in images:
        try:
            size = oriented_size(picture)
        except UserError:
            size = (0, 0)
        images[picture] = labels.add_image(picture, len(labels.paths) + 1, size_wh=size)
    width, height = labels.sizes_wh[images[picture]]
    box = (sides[0] * width, sides[1] * height, sides[2] * width, sides[3] * height)
    crowd = (row.get("IsGroupOf") or "0").strip() == "1"
    labels.add_object(images[picture], row.get("LabelName") or "", box, file=file, number=number, crowd=crowd)


def name_classes(labels: Labels, names: list[str]) -> None:
    """Classes by name, sorted; an object without a name stays of an unknown class."""
    labels.categories = {name: name for name in sorted(set(names) - {""})}


def add_shape(labels: Labels, image: int, name: str, points: list[Point], *, file: int, number: int) -> None:
    """Append a rectangle of two corners, or a polygon with its mask."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    finite = all(map(math.isfinite, [*xs, *ys]))
    polygon = [[value for point in points for value in point]]
    mask = json.dumps(polygon).encode() if len(points) > 2 and finite else b""
    box = (points[0][0], points[0][1], points[1][0], points[1][1]) if len(points) == 2 else (min(xs), min(ys), max(xs), max(ys))
    labels.add_object(image, name, box, file=file, number=number, mask=mask)
