"""Pascal VOC: one XML file a picture, lists of names under ImageSets/Main."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from defusedxml import DefusedXmlException, ElementTree

from detkit.core.errors import UserError
from detkit.data.content import is_there, opened
from detkit.data.folders import part_folder, pictures_by_stem
from detkit.data.labels import Labels
from detkit.data.paths import below
from detkit.recipe.schema import DataSettings

SIDES = ("xmin", "ymin", "xmax", "ymax")


def read_voc(root: Path, parts: Sequence[str], settings: DataSettings) -> Labels:
    """Pictures of the lists `parts` (ImageSets/Main/PART.txt), classes by name, of all annotations.

    Without lists a part is a folder of XML files below Annotations or data.labels; `.` is that folder itself.

    VOC pixels are 1-based and inclusive (VOC2012 devkit, section 4), so a box becomes xmin-1, ymin-1, xmax, ymax;
    one whose sides coincide is a labelling slip, not an object one pixel wide, and is reported as empty.
    Objects marked difficult are treated as crowds: not trained on, neither rewarded nor punished in scoring.
    """
    labels = Labels("object")
    lists = root / "ImageSets" / "Main"
    base = root / (settings.labels or ("Annotations" if (root / "Annotations").is_dir() else "."))
    seen: set[str] = set()
    for part in parts:
        folder, stems = base, []
        if lists.is_dir():
            stems = listed(lists / f"{part}.txt")
        else:
            folder = part_folder(base, part)
            stems = sorted(path.stem for path in folder.glob("*.xml"))
        pictures = pictures_by_stem(pictures_folder(root, folder, settings))
        for stem in stems:
            if stem in seen:
                labels.found("duplicate picture", str(lists / f"{part}.txt"), f"{stem} is listed twice")
                continue
            seen.add(stem)
            if below(root, folder, stem) is None:
                labels.found("outside the root", str(lists / f"{part}.txt"), f"{stem!r} does not lie below {root}")
            elif stem not in pictures:
                labels.found("missing picture", f"{stem}.*", f"listed in {part}, but there is no such picture")
            else:
                add_annotation(folder / f"{stem}.xml", pictures[stem], len(seen), labels=labels)
    labels.categories = {name: name for name in all_classes(base)}
    return labels


def pictures_folder(root: Path, folder: Path, settings: DataSettings) -> Path:
    """data.images, or JPEGImages, or where the XML files lie."""
    if settings.images:
        return root / settings.images
    return root / "JPEGImages" if (root / "JPEGImages").is_dir() else folder


def listed(path: Path) -> list[str]:
    """Names in an image-set list; a second column (class lists have one) keeps rows that are not -1."""
    if not path.is_file():
        there = sorted(p.stem for p in path.parent.glob("*.txt"))
        raise UserError(f"no list {path}", hint=f"lists there: {', '.join(there) or 'none'}; --set data.train=[...]")
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a list of names: {error}") from error
    return [row[0] for row in rows if len(row) == 1 or row[1] != "-1"]


def add_annotation(path: Path, picture: Path, image_id: int | str, *, labels: Labels) -> None:
    """Append one picture with the objects of its XML file; a file that cannot be read leaves its picture out."""
    file = labels.add_file(path)
    try:
        tree = parsed_xml(path)
    except UserError as error:
        labels.found("unread label file", str(path), error.what)
        return
    image = labels.add_image(picture, image_id, size_wh=claimed_size(tree))
    for number, item in enumerate(tree.iter("object"), start=1):
        where = f"{path}: object {number}"
        texts = [item.findtext(f"bndbox/{side}") for side in SIDES]
        try:
            x1, y1, x2, y2 = (float(text or "") for text in texts)
        except ValueError:
            labels.found("no box", where, f"bndbox {dict(zip(SIDES, texts, strict=True))} is not four numbers")
            continue
        name = (item.findtext("name") or "").strip()
        if not name:
            labels.found("unknown class", where, "it has no class name")
            continue
        box = (x1 - 1, y1 - 1, x2, y2) if x2 > x1 and y2 > y1 else (x1, y1, x2, y2)
        difficult = (item.findtext("difficult") or "0").strip() == "1"
        labels.add_object(image, name, box, file=file, number=number, crowd=difficult)


def parsed_xml(path: Path) -> Any:
    """The root element of an XML file. Raises UserError saying why it cannot be read; entities are not expanded."""
    if not is_there(path):
        raise UserError(f"no annotation {path}", hint="every listed picture needs its XML file")
    try:
        with opened(path) as file:
            return ElementTree.parse(file).getroot()
    except DefusedXmlException as error:
        raise UserError(f"{path} declares entities, which labels never need: {error}") from error
    except (ParseError, ValueError, LookupError, RecursionError, EOFError) as error:
        raise UserError(f"{path} is not XML: {error}") from error


def claimed_size(tree: Any) -> tuple[int, int]:
    """Width and height that the file gives for its picture; (0, 0) where it gives none."""
    try:
        width, height = (int(float(tree.findtext(f"size/{side}") or "0")) for side in ("width", "height"))
    except (ValueError, OverflowError):
        return (0, 0)
    return (width, height) if width > 0 and height > 0 else (0, 0)


def all_classes(base: Path) -> tuple[str, ...]:
    """Names in any annotation below `base`, sorted, so that every part numbers them alike."""
    names: set[str] = set()
    for path in sorted(base.rglob("*.xml")):
        try:
            tree = parsed_xml(path)
        except UserError:
            # Named when its own part is read.
            continue
        names.update((item.findtext("name") or "").strip() for item in tree.iter("object"))
    return tuple(sorted(names - {""}))
