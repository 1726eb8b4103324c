"""Pascal VOC: one XML file a picture, lists of names under ImageSets/Main."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detkit.core.errors import UserError
from detkit.data.dataset import Dataset, LabelledImage, LabelledObject, Problem, labelled_image
from detkit.data.images import oriented_size
from detkit.recipe.schema import DataSettings

SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG", ".bmp")


@dataclass(frozen=True)
class Annotation:
    """Objects of one XML file: class names, boxes xyxy with exclusive right and bottom, and `difficult` marks."""

    names: list[str]
    boxes: list[tuple[float, float, float, float]]
    difficult: list[bool]


def read_voc(root: Path, parts: Sequence[str], settings: DataSettings) -> Dataset:
    """Pictures of the lists `parts` (ImageSets/Main/PART.txt), classes by name unless `settings.classes` orders them.

    VOC pixels are 1-based and inclusive (VOC2012 devkit, section 4), so a box becomes xmin-1, ymin-1, xmax, ymax;
    one whose sides coincide is a labelling slip, not an object one pixel wide, and is reported as empty.
    Objects marked difficult are treated as crowds: not trained on, neither rewarded nor punished in scoring.
    """
    stems = [stem for part in parts for stem in listed(root / "ImageSets" / "Main" / f"{part}.txt")]
    folder = root / (settings.images or "JPEGImages")
    annotations = {stem: read_annotation(root / "Annotations" / f"{stem}.xml") for stem in stems}
    classes = chosen_classes(all_classes(root), settings.classes)
    images: list[LabelledImage] = []
    problems: list[Problem] = []
    for image_id, (stem, annotation) in enumerate(annotations.items(), start=1):
        path = next((folder / f"{stem}{s}" for s in SUFFIXES if (folder / f"{stem}{s}").is_file()), None)
        if path is None:
            problems.append(Problem("missing picture", f"{folder / stem}.*", "listed, but there is no such picture"))
            continue
        try:
            size_wh = oriented_size(path)
        except UserError as error:
            problems.append(Problem("unreadable picture", str(path), error.what))
            continue
        objects, unused = objects_in_use(stem, annotation, classes)
        image, empty = labelled_image(path, image_id, size_wh, objects=objects)
        images.append(image)
        problems += [*unused, *empty]
    return Dataset(tuple(images), tuple(classes), tuple(range(1, len(classes) + 1)), tuple(problems))


def listed(path: Path) -> list[str]:
    """Names in an image-set list; a second column (class lists have one) keeps rows that are not -1."""
    if not path.is_file():
        there = sorted(p.stem for p in path.parent.glob("*.txt"))
        raise UserError(f"no list {path}", hint=f"lists there: {', '.join(there) or 'none'}; --set data.train=[...]")
    rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
    return [row[0] for row in rows if len(row) == 1 or row[1] != "-1"]


def read_annotation(path: Path) -> Annotation:
    """Objects of a VOC XML file. Raises UserError naming file and object where it cannot be read."""
    if not path.is_file():
        raise UserError(f"no annotation {path}", hint="every listed picture needs its XML file")
    try:
        tree = ElementTree.parse(path)
    except ElementTree.ParseError as error:
        raise UserError(f"{path} is not XML: {error}") from error
    found = Annotation([], [], [])
    for index, item in enumerate(tree.iter("object"), start=1):
        try:
            x1, y1, x2, y2 = (float(item.findtext(f"bndbox/{k}") or "") for k in ("xmin", "ymin", "xmax", "ymax"))
        except ValueError as error:
            raise UserError(f"{path} object {index}: a box side is missing or not a number ({error})") from error
        name = (item.findtext("name") or "").strip()
        if not name:
            raise UserError(f"{path} object {index} has no class name")
        found.names.append(name)
        found.boxes.append((x1 - 1, y1 - 1, x2, y2) if x2 > x1 and y2 > y1 else (x1, y1, x2, y2))
        found.difficult.append((item.findtext("difficult") or "0").strip() == "1")
    return found


def chosen_classes(there: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Class names in label order. Raises UserError where `wanted` names one that no annotation has."""
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise UserError(f"data.classes names {unknown[0]!r}; the annotations have {list(there)}")
    return wanted or there


def objects_in_use(stem: str, annotation: Annotation, classes: tuple[str, ...]) -> tuple[list[LabelledObject], list[Problem]]:
    """Objects of the classes in use, and those left out because their class is not."""
    objects: list[LabelledObject] = []
    problems: list[Problem] = []
    columns = zip(annotation.names, annotation.boxes, annotation.difficult, strict=True)
    for number, (name, box, difficult) in enumerate(columns, start=1):
        if name in classes:
            objects.append(LabelledObject(f"object {number}", box, classes.index(name), difficult))
        else:
            problems.append(Problem("unused class", f"{stem}.xml object {number}", f"class {name!r} is not in use"))
    return objects, problems


def all_classes(root: Path) -> tuple[str, ...]:
    """Names in any annotation below `root`, sorted, so that every part numbers them alike."""
    names: set[str] = set()
    for path in sorted((root / "Annotations").glob("*.xml")):
        names.update(read_annotation(path).names)
    return tuple(sorted(names))
