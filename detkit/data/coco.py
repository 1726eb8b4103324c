"""COCO instances JSON, read a block of records at a time so that memory stays near the size of the file."""

import contextlib
import gc
import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from detkit.core.errors import UserError
from detkit.data.coco_blocks import Block, Stretch, blocks_of, parted, read_beside, shared, whole
from detkit.data.coco_records import LARGEST_ID, Annotation, Category, Columns, ImageIds, ImageRecord, Top
from detkit.data.labels import Labels
from detkit.data.paths import below
from detkit.recipe.schema import DataSettings

LARGEST_SIDE = 2**31
# Names that need care, between NULs: absolute, empty, or with a part that is empty or begins with a dot.
UNUSUAL = ("\0/", "\0.", "\0\0", "/.", "//", "\\")


def read_coco(root: Path, parts: Sequence[str], settings: DataSettings) -> Labels:
    """Pictures and objects of the annotation files `parts`; categories by id.

    Boxes are x, y, width, height in px (COCO data format, section 1). Image ids must be unique over the parts. A
    record that is not as it should be is left out and named. Raises UserError where a file is not COCO at all.
    """
    labels = Labels("annotation")
    columns = Columns()
    for part in parts:
        path = annotation_file(root, part)
        read_file(path, root, labels=labels, columns=columns, settings=settings)
    columns.into(labels)
    labels.categories = dict(sorted(labels.categories.items(), key=lambda item: (isinstance(item[0], str), item[0])))
    return labels


def read_file(path: Path, root: Path, *, labels: Labels, columns: Columns, settings: DataSettings) -> None:
    """Append one annotation file."""
    file = labels.add_file(path)
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty; it is not a COCO instances file")
    with path.open("rb") as handle:
        # Closed when the last view of it is gone, which may be that of an error on its way out.
        content = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    with without_collector():
        top = sections(path, content)
        # What was read need not stay in memory; what is still needed is read from the file again.
        content.madvise(mmap.MADV_DONTNEED)
        stretch = whole(content, top.annotations, path, "annotations")
        images, categories = whole(content, top.images, path, "images"), whole(content, top.categories, path, "categories")
        parts = parted(stretch, max(0.0, (stretch.last - images.last) / 2 / stretch.last)) if shared(stretch) else None
        with read_beside(parts[1]) if parts else contextlib.nullcontext() as beside:
            for category in records(categories, Category, path, "categories", labels=labels):
                labels.categories[category.id] = category.name
            index = add_images(path, root, records(images, ImageRecord, path, "images", labels=labels), labels, settings=settings)
            reader = AnnotationReader(file, index=index, labels=labels, columns=columns)
            reader.read(parts[0] if parts else stretch)
            if parts and beside and reader.reached < stretch.last:
                found = beside()
                if found is None or not columns.extend(found, file, index):
                    reader.read(parts[1])


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Hundreds of thousands of records without cycles: the garbage collector would look through them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def sections(path: Path, content: Any) -> Top:
    """The three lists of the file as bytes. Raises UserError where it is not JSON or lacks one."""
    try:
        return msgspec.json.decode(content, type=Top)
    except RecursionError as error:
        raise UserError(f"{path} is nested too deeply to be a COCO instances file") from error
    except msgspec.ValidationError as error:
        raise UserError(
            f"{path} is not a COCO instances file: {error}", hint="it needs the lists images, annotations, categories"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return lenient_sections(path, bytes(content), error)


def lenient_sections(path: Path, content: bytes, first: Exception) -> Top:
    """The same of a file that strict JSON refuses: a byte order mark, NaN or Infinity as Python writes them."""
    try:
        parsed = json.loads(content.decode("utf-8-sig"))
        text = {name: json.dumps(parsed[name]) for name in ("images", "annotations", "categories")}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {first}", hint="export the labels again, as COCO instances") from error
    # Written as strings, such numbers reach the check of boxes by name.
    return Top(**{name: msgspec.Raw(quoted_constants(value).encode()) for name, value in text.items()})


def quoted_constants(text: str) -> str:
    """JSON as Python writes it, with NaN and Infinity as strings."""
    constants: list[Any] = []

    def keep(name: str) -> str:
        constants.append(name)
        return name

    return json.dumps(json.loads(text, parse_constant=keep))


def records(stretch: Stretch, kind: type[Any], path: Path, section: str, *, labels: Labels) -> Iterator[Any]:
    """Records of a list; those that are not as they should be are named."""
    position = 0
    for block, _ in blocks_of(stretch, kind):
        for record in block:
            position += 1
            if isinstance(record, kind):
                yield record
                continue
            try:
                yield msgspec.json.decode(record, type=kind)
            except (msgspec.DecodeError, RecursionError) as error:
                labels.found("unread line", f"{path}: {section}[{position - 1}]", str(error))


def add_images(path: Path, root: Path, found: Iterator[ImageRecord], labels: Labels, *, settings: DataSettings) -> ImageIds:
    """Append pictures; their indices by id."""
    ids, names, sizes = [], [], []
    shared_sizes: dict[tuple[int | None, int | None], tuple[int | None, int | None]] = {}
    for record in found:
        ids.append(record.id)
        names.append(record.file_name)
        size = (record.width, record.height)
        sizes.append(shared_sizes.setdefault(size, size))
    folder = picture_folder(root, path, names[0] if names else "", settings)
    prefix = f"{folder}/"
    text = "\0".join(["", *names, ""])
    first = len(labels.paths)
    known = set(labels.image_ids)
    plain = text.count("\0") == len(names) + 1 and not any(mark in text for mark in UNUSUAL)
    if plain and len(set(ids)) == len(ids) and known.isdisjoint(ids):
        usable = {size: usable_size(*size) for size in shared_sizes}
        labels.image_ids += ids
        labels.paths += [prefix + name for name in names]
        labels.sizes_wh += map(usable.__getitem__, sizes)
        labels.semantic += [None] * len(names)
        return ImageIds(ids, range(first, first + len(ids)))
    index: dict[int | str, int] = {}
    for position, (identity, name, size) in enumerate(zip(ids, names, sizes, strict=True)):
        where = f"{path}: images[{position}]"
        if identity in known or identity in index:
            labels.found("duplicate picture", where, f"image id {identity} is used before; {name} is left out")
            continue
        picture = below(root, folder, name)
        if picture is None:
            labels.found("outside the root", where, f"file_name {name!r} does not lie below {root}")
            continue
        index[identity] = labels.add_image(picture, identity, size_wh=usable_size(*size))
    return ImageIds(list(index), list(index.values()))


def usable_size(width: int | None, height: int | None) -> tuple[int, int]:
    """Width and height that the labels give, (0, 0) where they give none."""
    width, height = width or 0, height or 0
    return (width, height) if 0 < width < LARGEST_SIDE and 0 < height < LARGEST_SIDE else (0, 0)


class AnnotationReader:
    """Appends stretches of one file to columns."""

    def __init__(self, file: int, *, index: ImageIds, labels: Labels, columns: Columns) -> None:
        self.file, self.index, self.labels, self.columns = file, index, labels, columns
        self.position = 0
        self.reached = 0

    def read(self, stretch: Stretch) -> None:
        """Append a stretch, or all that is left of the list where it cannot be cut as it was."""
        for block, reached in blocks_of(stretch):
            self._add(block)
            self.position += len(block)
            self.reached = reached

    def _add(self, block: Block) -> None:
        rows: Any = block
        if block and isinstance(block[0], msgspec.Raw):
            rows = careful_rows(rows, self.position, file=self.file, labels=self.labels)
        image = self.index([row.image_id for row in rows])
        if image.size and image.min() < 0:
            for row in (rows[i] for i in np.flatnonzero(image < 0).tolist()):
                where = f"{self.labels.files[self.file]}: annotation {row.id}"
                self.labels.found("orphan annotation", where, f"image id {row.image_id} is not among the usable pictures")
            rows = [row for row, known in zip(rows, image.tolist(), strict=True) if known >= 0]
            image = image[image >= 0]
        self.columns.add(self.file, rows, image)


def careful_rows(pieces: list[msgspec.Raw], start: int, *, file: int, labels: Labels) -> list[Annotation]:
    """Annotations one by one: what can be read as meant is, the rest is named."""
    rows = []
    for position, piece in enumerate(pieces, start):
        try:
            row = msgspec.json.decode(piece, type=Annotation)
        except (msgspec.DecodeError, RecursionError, OverflowError) as error:
            row = mended(piece, position, error, file=file, labels=labels)
        if row is not None and not -LARGEST_ID <= row.id < LARGEST_ID:
            row.id = position
        if row is not None:
            rows.append(row)
    return rows


def mended(piece: msgspec.Raw, position: int, error: Exception, *, file: int, labels: Labels) -> Annotation | None:
    """An annotation whose id is a string or missing, or whose numbers are strings; None where nothing can be meant."""
    where = f"{labels.files[file]}: annotations[{position}]"
    try:
        given = msgspec.json.decode(piece)
    except (msgspec.DecodeError, RecursionError):
        given = None
    if not isinstance(given, dict) or not {"image_id", "category_id"} <= given.keys():
        labels.found("unread line", where, str(error))
        return None
    identity = given.get("id")
    if type(identity) is int:
        where = f"{labels.files[file]}: annotation {identity}"
    box, area = numbers(given.get("bbox")), numbers([given.get("area")])
    if box is None or len(box) != 4:
        labels.found("no box", where, f"bbox is {str(given.get('bbox'))[:80]}")
        return None
    keys = [given[name] for name in ("image_id", "category_id")]
    if any(type(key) not in (int, str) for key in keys):
        labels.found("unread line", where, f"image_id and category_id are {str(keys)[:80]}")
        return None
    mask = msgspec.json.encode(given["segmentation"]) if given.get("segmentation") else b""
    x, y, width, height = box
    crowd = int(bool(given.get("iscrowd")))
    number = identity if type(identity) is int else position
    return Annotation(number, keys[0], keys[1], (x, y, width, height), area[0] if area else None, crowd, msgspec.Raw(mask))


def numbers(given: Any) -> list[float] | None:
    """Numbers, also where they are written as strings; None where one cannot be read."""
    if not isinstance(given, list):
        return None
    try:
        return [float(value) for value in given]
    except (TypeError, ValueError, OverflowError):
        return None


def annotation_file(root: Path, part: str) -> Path:
    """The JSON that a part names: a path below root, or a stem in root or root/annotations."""
    places = [root / part, root / f"{part}.json", root / "annotations" / part, root / "annotations" / f"{part}.json"]
    places.append(root / "annotations" / f"instances_{part}.json")
    found = next((p for p in places if p.is_file()), None)
    if found is None:
        there = sorted(p.relative_to(root).as_posix() for p in [*root.glob("*.json"), *root.glob("*/*.json")])[:8]
        raise UserError(f"no COCO file {part!r} below {root}", hint=f"there are: {', '.join(there) or 'none'}; --set data.train=[...]")
    return found


def picture_folder(root: Path, annotations: Path, first: str, settings: DataSettings) -> Path:
    """Where the pictures of an annotation file lie: data.images, or the usual place that has the picture `first`.

    The usual places are a folder named like the part, below root or images/, then images/ and its folders, then root
    and the folder of the annotations.
    """
    stem = annotations.stem.removeprefix("instances_")
    usual = [root / stem, root / "images" / stem, root / "images", *sorted((root / "images").glob("*/")), root, annotations.parent]
    places = [root / settings.images] if settings.images else usual
    there = [place for place in places if place.is_dir()]
    if not there:
        raise UserError(f"no folder {places[0]}", hint="--set data.images=FOLDER_BELOW_ROOT")
    if not first or "\0" in first or len(first) > 4096:
        return there[0]
    return next((place for place in there if (place / first).is_file()), there[0])
