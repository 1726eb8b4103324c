"""COCO instances JSON."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detkit.core.errors import UserError
from detkit.data.dataset import Dataset, LabelledImage, LabelledObject, Problem, labelled_image
from detkit.data.images import oriented_size
from detkit.recipe.schema import DataSettings

NEEDED_KEYS = {"images": ("id", "file_name"), "annotations": ("image_id", "category_id"), "categories": ("id", "name")}


def read_coco(root: Path, parts: Sequence[str], settings: DataSettings) -> Dataset:
    """Pictures of the annotation files `parts`, classes by category id unless `settings.classes` orders them.

    Image ids must be unique over the parts. Boxes are x, y, width, height in px (COCO data format, section 1).
    """
    contents = [(path, parsed(path)) for path in (annotation_file(root, part) for part in parts)]
    names = {c["id"]: c["name"] for _, content in contents for c in content["categories"]}
    ordered = ordered_categories(names, settings.classes)
    label_of = {category: label for label, category in enumerate(ordered)}
    images: list[LabelledImage] = []
    problems: list[Problem] = []
    seen: set[int] = set()
    for path, content in contents:
        folder = picture_folder(root, path, content, settings)
        by_image = grouped(content, path, problems)
        for record in content["images"]:
            if record["id"] in seen:
                raise UserError(f"{path}: image id {record['id']} is used twice", hint="give every picture its own id")
            seen.add(record["id"])
            picture = folder / record["file_name"]
            if not picture.is_file():
                problems.append(Problem("missing picture", str(picture), "listed, but there is no such picture"))
                continue
            objects, unused = objects_in_use(picture, by_image[record["id"]], label_of)
            try:
                size_wh = recorded_size(record) or oriented_size(picture)
            except UserError as error:
                problems.append(Problem("unreadable picture", str(picture), error.what))
                continue
            image, empty = labelled_image(picture, record["id"], size_wh, objects=objects)
            images.append(image)
            problems += [*unused, *empty]
    return Dataset(tuple(images), tuple(names[c] for c in ordered), tuple(ordered), tuple(problems))


def annotation_file(root: Path, part: str) -> Path:
    """The JSON that a part names: a path below root, or a stem in root or root/annotations."""
    places = [root / part, root / f"{part}.json", root / "annotations" / part, root / "annotations" / f"{part}.json"]
    places.append(root / "annotations" / f"instances_{part}.json")
    found = next((p for p in places if p.is_file()), None)
    if found is None:
        there = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.json"))[:8]
        raise UserError(f"no COCO file {part!r} below {root}", hint=f"there are: {', '.join(there) or 'none'}; --set data.train=[...]")
    return found


def parsed(path: Path) -> dict[str, Any]:
    """Content of an annotation file. Raises UserError naming file and record where it is not COCO instances JSON."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    for section, keys in NEEDED_KEYS.items():
        records = content.get(section) if isinstance(content, dict) else None
        if not isinstance(records, list):
            raise UserError(f"{path} has no list {section!r}; it is not a COCO instances file")
        for index, record in enumerate(records):
            missing = [key for key in keys if key not in record]
            if missing:
                raise UserError(f"{path}: {section}[{index}] has no {missing[0]!r}")
    return content


def ordered_categories(names: dict[int, str], classes: Sequence[str]) -> list[int]:
    """Category ids in label order."""
    if not classes:
        return sorted(names)
    ids = {name: category for category, name in names.items()}
    unknown = [name for name in classes if name not in ids]
    if unknown:
        raise UserError(f"data.classes names {unknown[0]!r}; the annotations have {sorted(ids)}")
    return [ids[name] for name in classes]


def picture_folder(root: Path, annotations: Path, content: dict[str, Any], settings: DataSettings) -> Path:
    """Where the pictures of an annotation file lie: data.images, or the usual place that has its first picture.

    The usual places are a folder named like the part, below root or images/, then images/ and its folders, then root.
    """
    stem = annotations.stem.removeprefix("instances_")
    usual = [root / stem, root / "images" / stem, root / "images", *sorted((root / "images").glob("*/")), root]
    places = [root / settings.images] if settings.images else usual
    there = [place for place in places if place.is_dir()]
    if not there:
        raise UserError(f"no folder {places[0]}", hint="--set data.images=FOLDER_BELOW_ROOT")
    first = content["images"][0]["file_name"] if content["images"] else ""
    return next((place for place in there if (place / first).is_file()), there[0])


def grouped(content: dict[str, Any], path: Path, problems: list[Problem]) -> dict[int, list[dict[str, Any]]]:
    """Annotations by image id; those of unlisted pictures are left out and named."""
    by_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
    known = {record["id"] for record in content["images"]}
    for annotation in content["annotations"]:
        if annotation["image_id"] in known:
            by_image[annotation["image_id"]].append(annotation)
        else:
            what = f"image id {annotation['image_id']} is not listed; annotation left out"
            problems.append(Problem("orphan annotation", f"{path.name} annotation {annotation.get('id')}", what))
    return by_image


def objects_in_use(
    picture: Path, annotations: list[dict[str, Any]], label_of: dict[int, int]
) -> tuple[list[LabelledObject], list[Problem]]:
    """Objects that belong to a class in use and have a box, and the annotations left out."""
    objects: list[LabelledObject] = []
    problems: list[Problem] = []
    for annotation in annotations:
        name = f"annotation {annotation.get('id')}"
        place, category, box = f"{picture.name} {name}", annotation["category_id"], annotation.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
            problems.append(Problem("no box", place, f"bbox is {box!r}; annotation left out"))
        elif category not in label_of:
            problems.append(Problem("unused class", place, f"category {category} is not in use"))
        else:
            x, y, width, height = box
            corners = (x, y, x + width, y + height)
            crowd = bool(annotation.get("iscrowd", 0))
            objects.append(LabelledObject(name, corners, label_of[category], crowd, annotation.get("area")))
    return objects, problems


def recorded_size(record: dict[str, Any]) -> tuple[int, int] | None:
    """Width and height that the labels give for a picture, if they do."""
    width, height = record.get("width"), record.get("height")
    return (int(width), int(height)) if width and height else None
