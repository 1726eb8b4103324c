"""COCO instances JSON, read a block of records at a time so that memory stays near the size of the file."""

import contextlib
import gc
import json
import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from detkit.core.errors import UserError
from detkit.data.coco_records import LARGEST_ID, Annotation, Category, Columns, ImageIds, ImageRecord, Top
from detkit.data.labels import Labels
from detkit.data.paths import below
from detkit.recipe.schema import DataSettings

# Bytes of annotations decoded at a time.
BLOCK_BYTES = 1 << 20
EXACT_BLOCK = 4096
BETWEEN_RECORDS = re.compile(rb"}\s*,\s*(?={)")
LARGEST_SIDE = 2**31
# Names that need care: absolute, with an empty part, or with a part that begins with a dot. They are joined by NUL.
UNUSUAL = re.compile(r"(^|\0)(/|\.|\0|$)|/\.|//|\\")


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
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content, without_collector():
        top = sections(path, content)
        # What was read need not stay in memory; what is still needed is read from the file again.
        content.madvise(mmap.MADV_DONTNEED)
        for category in records(top.categories, Category, path, "categories", labels=labels):
            labels.categories[category.id] = category.name
        images = records(top.images, ImageRecord, path, "images", labels=labels)
        index = add_images(path, root, images, labels=labels, settings=settings)
        del images
        content.madvise(mmap.MADV_DONTNEED)
        position = 0
        for rows in blocks_of(top.annotations, path):
            position += add_annotations(file, rows, position, index=index, labels=labels, columns=columns)
            content.madvise(mmap.MADV_DONTNEED)
        del top, rows


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


def blocks_of(annotations: msgspec.Raw, path: Path) -> Iterator[list[Annotation] | list[msgspec.Raw]]:
    """Blocks of decoded annotations, or of their bytes where a block does not decode as a whole.

    The list is cut where one record seems to end and the next to begin. A cut inside a string or a nested list would
    leave the piece before it open, which does not decode, so a piece that decodes was cut rightly.
    """
    content = memoryview(annotations)
    first, last = skip_space(content, 0) + 1, len(content) - 1
    decoder = msgspec.json.Decoder(list[Annotation])
    while first < last:
        cut = BETWEEN_RECORDS.search(content, min(first + BLOCK_BYTES, last))
        end = last if cut is None else cut.start() + 1
        try:
            yield decoder.decode(b"[%b]" % content[first:end])
        except (msgspec.DecodeError, RecursionError, OverflowError):
            # Exact, and slower: the rest is split record by record.
            yield from exact_blocks(content[first:], path)
            return
        first = last if cut is None else cut.end()
    if first == 1 and last == 1:
        yield []


def exact_blocks(rest: memoryview, path: Path) -> Iterator[list[msgspec.Raw]]:
    pieces = split(msgspec.Raw(b"[%b" % rest), path, "annotations")
    for start in range(0, len(pieces), EXACT_BLOCK):
        yield pieces[start : start + EXACT_BLOCK]


def skip_space(content: memoryview, position: int) -> int:
    while content[position] in b" \t\r\n":
        position += 1
    return position


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


def split(raw: msgspec.Raw, path: Path, section: str) -> list[msgspec.Raw]:
    """Records of a list as bytes that point into the file."""
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"{path} has no list {section!r}; it is not a COCO instances file") from error


def records(raw: msgspec.Raw, kind: type[Any], path: Path, section: str, *, labels: Labels) -> list[Any]:
    """Records of a list; those that are not as they should be are named."""
    try:
        return msgspec.json.decode(raw, type=list[kind])  # pyright: ignore[reportInvalidTypeForm]
    except (msgspec.DecodeError, RecursionError):
        found = []
        for index, piece in enumerate(split(raw, path, section)):
            try:
                found.append(msgspec.json.decode(piece, type=kind))
            except (msgspec.DecodeError, RecursionError) as error:
                labels.found("unread line", f"{path}: {section}[{index}]", str(error))
        return found


def add_images(path: Path, root: Path, found: list[ImageRecord], *, labels: Labels, settings: DataSettings) -> ImageIds:
    """Append pictures; their indices by id."""
    folder = picture_folder(root, path, found[0].file_name if found else "", settings)
    ids = [record.id for record in found]
    names = [record.file_name for record in found]
    plain = "\0".join(names)
    first = len(labels.paths)
    known = set(labels.image_ids)
    if (
        len(set(ids)) == len(ids)
        and known.isdisjoint(ids)
        and not UNUSUAL.search(plain)
        and plain.count("\0") == max(0, len(names) - 1)
    ):
        labels.image_ids += ids
        labels.paths += [f"{folder}/{name}" for name in names]
        labels.sizes_wh += [size_of(record) for record in found]
        labels.semantic += [None] * len(names)
        return ImageIds(ids, range(first, first + len(ids)))
    index: dict[int | str, int] = {}
    for position, record in enumerate(found):
        where = f"{path}: images[{position}]"
        if record.id in known or record.id in index:
            labels.found("duplicate picture", where, f"image id {record.id} is used before; {record.file_name} is left out")
            continue
        picture = below(root, folder, record.file_name)
        if picture is None:
            labels.found("outside the root", where, f"file_name {record.file_name!r} does not lie below {root}")
            continue
        index[record.id] = labels.add_image(picture, record.id, size_wh=size_of(record))
    return ImageIds(list(index), index.values())


def size_of(record: ImageRecord) -> tuple[int, int]:
    """Width and height that the labels give, (0, 0) where they give none."""
    width, height = record.width or 0, record.height or 0
    return (width, height) if 0 < width < LARGEST_SIDE and 0 < height < LARGEST_SIDE else (0, 0)


def add_annotations(
    file: int,
    block: list[Annotation] | list[msgspec.Raw],
    start: int,
    *,
    index: ImageIds,
    labels: Labels,
    columns: Columns,
) -> int:
    """Append a block of annotations, `start` being the position of its first; return how many records it had."""
    rows: Any = block
    if block and isinstance(block[0], msgspec.Raw):
        rows = careful_rows(rows, start, file=file, labels=labels)
    image = index([row.image_id for row in rows])
    if image.size and image.min() < 0:
        for row in (rows[i] for i in np.flatnonzero(image < 0).tolist()):
            where = f"{labels.files[file]}: annotation {row.id}"
            labels.found("orphan annotation", where, f"image id {row.image_id} is not among the usable pictures")
        rows = [row for row, known in zip(rows, image.tolist(), strict=True) if known >= 0]
        image = image[image >= 0]
    columns.add(file, rows, image)
    return len(block)


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
