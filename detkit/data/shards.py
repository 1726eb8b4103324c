"""Tar shards in WebDataset's layout: pictures and their labels one after the other, read in any order without unpacking.

A sample is all members with the same name up to the first dot of its last part: `a/0001.jpg` and `a/0001.json`. The
shards' members are listed once, by Python's tarfile, for the index; afterwards every picture is read by its place.
"""

import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from detkit.core.errors import UserError
from detkit.data.annotation_tools import add_labelme, add_shape, claimed, name_classes
from detkit.data.coco import numbers
from detkit.data.content import member_path
from detkit.data.folders import SUFFIXES, text_of
from detkit.data.labels import Labels
from detkit.data.png_masks import numbered
from detkit.data.voc import add_annotation
from detkit.data.yolo import Lines, add_classes, add_objects, add_picture, configuration
from detkit.recipe.schema import DataSettings

KINDS = ("json", "xml", "txt")
# Members that are looked at to tell the kind of the labels.
MOST_LOOKED_AT = 1000
# Zeros that a writer may append to fill its last record, bytes.
MOST_PADDING = 1 << 20


@dataclass(frozen=True)
class Sample:
    """The members of one sample by extension, each a path inside the shard (`content.member_path`), and its id."""

    image_id: str
    members: dict[str, str]

    def path(self, extension: str) -> Path | None:
        """The member with an extension."""
        path = self.members.get(extension)
        return None if path is None else Path(path)

    def picture(self) -> Path | None:
        """The first member that is a picture."""
        return next((Path(path) for extension, path in self.members.items() if f".{extension}" in SUFFIXES), None)


def read_shards(root: Path, parts: Sequence[str], settings: DataSettings) -> Labels:
    """Pictures of the shards of `parts` with the labels of their samples.

    A part is a pattern (`train-*.tar`), a folder of shards, or what `train.tar`, `train-000.tar` or `train_000.tar` begin
    with; `.` is all shards in root. Labels are a member json (`annotations` in COCO's form, or LabelMe), xml (VOC) or txt
    (YOLO) of each sample; `data.labels` names the extension where samples have several. Classes are names of the labels;
    numbers mean the `names` of data.yaml, or lines of classes.txt, beside the shards. Raises UserError without shards.
    """
    shards = list(dict.fromkeys(shard for part in parts for shard in part_shards(root, part)))
    labels = Labels("object")
    kind = settings.labels or kind_of(shards)
    if kind == "txt":
        labels.style = "line"
    reader = SampleReader(labels, kind)
    for shard in shards:
        for sample in samples_of(shard, labels):
            reader.add(sample)
    reader.finish(root, settings)
    return labels


def part_shards(root: Path, part: str) -> list[Path]:
    """Shards of a part, sorted. Raises UserError naming those that there are."""
    patterns = [f"{part}/*.tar", f"{part}.tar", f"{part}-*.tar", f"{part}_*.tar"] if part != "." else ["*.tar"]
    if any(mark in part for mark in "*?["):
        patterns = [part]
    inside = bool(part) and not Path(part).is_absolute() and ".." not in Path(part).parts
    found = sorted(path for pattern in patterns for path in root.glob(pattern) if path.is_file()) if inside else []
    if not found:
        there = sorted(path.relative_to(root).as_posix() for path in [*root.glob("*.tar"), *root.glob("*/*.tar")])
        few = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
        raise UserError(
            f"no shards {' or '.join(patterns)} in {root}", hint=f"there are: {few or 'none'}; --set data.train=[train-*.tar]"
        )
    return found


def members_of(shard: Path) -> Iterator[tarfile.TarInfo]:
    """Regular members of a shard in order. Raises UserError where it is no plain tar, or ends before they do."""
    size = shard.stat().st_size
    try:
        with tarfile.open(shard, "r:") as archive:
            while (member := archive.next()) is not None:
                # It keeps every member, of which there may be millions.
                archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
                if member.offset_data + member.size > size:
                    raise UserError(f"{shard} ends inside {member.name}", hint="copy the shard again")
                if member.isreg() and not member.issparse():
                    yield member
            check_end(shard, archive.offset, size)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise UserError(f"{shard} is not a plain tar file: {error}", hint="decompress it, or write it again") from error
    except OSError as error:
        raise UserError(f"{shard} cannot be read: {error}") from error


def check_end(shard: Path, offset: int, size: int) -> None:
    """Raises UserError unless the members end, at `offset`, in the block of zeros that a whole tar has there."""
    with shard.open("rb") as file:
        file.seek(offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise UserError(f"{shard} has no end mark at byte {offset} of {size}", hint="copy the shard again")
    if size - offset > MOST_PADDING:
        raise UserError(f"{shard} goes on for {size - offset} bytes after its end mark", hint="do not join shards with cat")


def split_name(name: str) -> tuple[str, str]:
    """Key and extension of a member, as WebDataset splits them; both empty for names without."""
    folder, slash, last = name.rpartition("/")
    stem, dot, extension = last.partition(".")
    return (folder + slash + stem, extension.lower()) if stem and dot and extension else ("", "")


def samples_of(shard: Path, labels: Labels) -> list[Sample]:
    """Samples of a shard in the order of their first members, wherever the others lie; what cannot be used is named."""
    samples: dict[str, Sample] = {}
    try:
        for member in members_of(shard):
            name = member.name.removeprefix("./")
            key, extension = split_name(name)
            if not key:
                continue
            sample = samples.setdefault(key, Sample(f"{shard.stem}/{key}", {}))
            if extension in sample.members:
                labels.found("duplicate picture", f"{shard}: {member.name}", "the shard has a member of that name before")
                continue
            sample.members[extension] = member_path(shard, member.offset_data, member.size, name)
    except UserError as error:
        labels.found("unread shard", str(shard), error.what)
    return list(samples.values())


def kind_of(shards: list[Path]) -> str:
    """The extension of the labels, by the first members. Raises UserError where samples have several kinds."""
    found: Counter[str] = Counter()
    for shard in shards:
        try:
            for number, member in enumerate(members_of(shard)):
                found[split_name(member.name)[1]] += 1
                if number == MOST_LOOKED_AT:
                    break
        except UserError:
            # Named when its samples are read.
            continue
        if found:
            break
    there = [kind for kind in KINDS if found[kind]]
    if len(there) > 1:
        raise UserError(f"samples of {shards[0]} have {' and '.join(there)}", hint=f"--set data.labels={there[0]}")
    return there[0] if there else KINDS[0]


class SampleReader:
    """Appends samples to labels; `kind` is the extension of theirs."""

    def __init__(self, labels: Labels, kind: str) -> None:
        if kind not in KINDS:
            raise UserError(f"data.labels is {kind!r}; labels in shards are {', '.join(KINDS)}", hint=f"--set data.labels={KINDS[0]}")
        self.labels, self.kind = labels, kind
        self.lines = Lines()
        self.shapes: list[Any] = []
        self.num_labelled = 0

    def add(self, sample: Sample) -> None:
        """Append one sample, or name what it lacks."""
        picture, label = sample.picture(), sample.path(self.kind)
        if picture is None:
            if label is not None:
                self.labels.found("label without picture", str(label), "its sample has no picture")
            return
        if label is None:
            self.labels.add_image(picture, sample.image_id)
            self.labels.found("picture without label", str(picture), f"its sample has no {self.kind}")
            return
        self.num_labelled += 1
        if self.kind == "txt":
            add_picture(label, picture, labels=self.labels, lines=self.lines)
            self.labels.image_ids[-1] = sample.image_id
        elif self.kind == "xml":
            add_annotation(label, picture, sample.image_id, labels=self.labels)
        else:
            self._add_json(label, picture, sample.image_id)

    def _add_json(self, label: Path, picture: Path, image_id: str) -> None:
        try:
            given = msgspec.json.decode(text_of(label))
        except (msgspec.DecodeError, RecursionError) as error:
            self.labels.found("unread label file", str(label), f"not JSON: {error}")
            return
        except UserError as error:
            self.labels.found("unread label file", str(label), error.what)
            return
        if isinstance(given, dict) and "shapes" in given:
            known = len(self.labels.paths)
            add_labelme(label, {label.stem: picture}, labels=self.labels, rows=self.shapes)
            self.labels.image_ids[known:] = [image_id] * (len(self.labels.paths) - known)
            return
        rows = given.get("annotations") if isinstance(given, dict) else given
        if not isinstance(rows, list):
            self.labels.found("unread label file", str(label), "neither a list, nor a mapping with annotations or shapes")
            return
        file = self.labels.add_file(label)
        size = given if isinstance(given, dict) else {}
        image = self.labels.add_image(picture, image_id, size_wh=claimed(size.get("width"), size.get("height")))
        for number, row in enumerate(rows, start=1):
            self._add_row(row, image, file=file, number=number)

    def _add_row(self, row: Any, image: int, *, file: int, number: int) -> None:
        """Append an annotation in COCO's form; its category is `category_id`, or a name in `category`."""
        place = f"{self.labels.files[file]}: object {number}"
        given: dict[str, Any] = row if isinstance(row, dict) else {}
        box = numbers(given.get("bbox"))
        if box is None or len(box) != 4:
            self.labels.found("no box", place, f"bbox is {str(given.get('bbox'))[:80]}")
            return
        category = given.get("category_id", given.get("category"))
        if type(category) not in (int, str):
            self.labels.found("unknown class", place, f"category_id is {str(category)[:40]}")
            return
        x, y, width, height = box
        area = numbers([given.get("area")])
        mask = msgspec.json.encode(given["segmentation"]) if given.get("segmentation") else b""
        self.labels.add_object(
            image,
            category,
            (x, y, x + width, y + height),
            file=file,
            number=number,
            crowd=bool(given.get("iscrowd")),
            area_px=area[0] if area else float("nan"),
            mask=mask,
        )

    def finish(self, root: Path, settings: DataSettings) -> None:
        """Classes, and the objects that waited for them."""
        labels = self.labels
        if labels.paths and not self.num_labelled:
            labels.found("no labels", str(root), f"none of {len(labels.paths)} samples has a {self.kind}")
            labels.findings = [finding for finding in labels.findings if finding.kind != "picture without label"]
        config = configuration(root, settings.model_copy(update={"labels": ""}))
        names = [*labels.category, *(name for name, *_ in self.shapes)] if self.kind != "txt" else []
        if any(isinstance(name, str) for name in names):
            name_classes(
                labels,
                [str(name) for _, name in numbered(config.get("names", config.get("classes")))] or [str(name) for name in names],
            )
        else:
            used = {label for _, label, *_ in self.lines.rows} | set(names)
            add_classes(labels, config, root, used)
        add_objects(labels, self.lines)
        for name, image, points, file, number in self.shapes:
            add_shape(labels, image, name, points, file=file, number=number)
