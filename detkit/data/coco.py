"""COCO instances JSON."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detkit.core.errors import UserError
from detkit.data.dataset import Dataset, LabelledImage, Problem, labelled_image
from detkit.recipe.schema import DataSettings


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
        folder = picture_folder(root, path, settings)
        by_image = grouped(content, path, problems)
        for record in content["images"]:
            if record["id"] in seen:
                raise UserError(f"{path}: image id {record['id']} is used twice", hint="give every picture its own id")
            seen.add(record["id"])
            picture = folder / record["file_name"]
            if not picture.is_file():
                problems.append(Problem("missing picture", str(picture), "listed, but there is no such picture"))
                continue
            images.append(one_image(picture, record, by_image[record["id"]], label_of, problems))
    return Dataset(tuple(images), tuple(names[c] for c in ordered), tuple(ordered), tuple(problems))


def annotation_file(root: Path, part: str) -> Path:
    """The JSON that a part names: a path below root, or a stem in root or root/annotations."""
    places = [root / part, root / f"{part}.json", root / "annotations" / part, root / "annotations" / f"{part}.json"]
    places.append(root / "annotations" / f"instances_{part}.json")
    found = next((p for p in places if p.is_file()), None)
    if found is None:
        there = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.json"))[:8]
        raise UserError(
            f"no COCO file {part!r} below {root}", hint=f"there are: {', '.join(there) or 'none'}; --set data.train=[...]"
        )
    return found


def parsed(path: Path) -> dict[str, Any]:
    """Content of an annotation file. Raises UserError where it is not COCO JSON."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    missing = [key for key in ("images", "annotations", "categories") if key not in content]
    if missing:
        raise UserError(f"{path} has no {missing[0]!r}; it is not a COCO instances file")
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


def picture_folder(root: Path, annotations: Path, settings: DataSettings) -> Path:
    """Where the pictures of an annotation file lie: data.images, a folder named like the part, images/ or root."""
    stem = annotations.stem.removeprefix("instances_")
    names = [settings.images] if settings.images else [stem, f"images/{stem}", "images", "."]
    found = next((root / name for name in names if (root / name).is_dir()), None)
    if found is None:
        raise UserError(f"no folder {root / names[0]}", hint="--set data.images=FOLDER_BELOW_ROOT")
    return found


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


def one_image(
    picture: Path,
    record: dict[str, Any],
    annotations: list[dict[str, Any]],
    label_of: dict[int, int],
    problems: list[Problem],
) -> LabelledImage:
    """A picture with those of its annotations that belong to a class in use and have a box."""
    boxes, labels, crowd = [], [], []
    for annotation in annotations:
        place = f"{picture.name} annotation {annotation.get('id')}"
        box = annotation.get("bbox")
        if not isinstance(box, list) or len(box) != 4:
            problems.append(Problem("no box", place, f"bbox is {box!r}; annotation left out"))
            continue
        if annotation["category_id"] not in label_of:
            problems.append(Problem("unused class", place, f"category {annotation['category_id']} is not in use"))
            continue
        x, y, width, height = (float(v) for v in box)
        boxes.append([x, y, x + width, y + height])
        labels.append(label_of[annotation["category_id"]])
        crowd.append(bool(annotation.get("iscrowd", 0)))
    size = (int(record["width"]), int(record["height"]))
    return labelled_image(picture, record["id"], size, boxes=boxes, labels=labels, crowd=crowd)
