"""Labelled pictures in one representation, whichever format they came in, with what was found on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detkit.core.errors import GateError, UserError
from detkit.data.findings import Finding, errors_of, summary
from detkit.data.formats import READERS, found_format, label_files
from detkit.data.index import Index, indexed
from detkit.data.scenes import scene_settings
from detkit.data.table import LabelledImage
from detkit.recipe.schema import DataSettings

# Faults of a whole part: there is nothing to leave out that would mend them.
NEVER_SKIPPED = ("no labels", "no objects", "all crowd", "pixel units")


@dataclass(frozen=True)
class Dataset:
    """Usable pictures of one part, class names in label order, original category ids and everything that was found."""

    images: Sequence[LabelledImage]
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    findings: tuple[Finding, ...] = ()


def load_dataset(settings: DataSettings, part: str) -> Dataset:
    """The `train` or `val` part that `settings` names.

    Faulty labels and pictures are left out and listed in `findings`, with what was clipped or read otherwise than it
    is written. Raises UserError for missing folders and lists, and if no picture is left.
    """
    settings, root = located(settings)
    names = settings.train if part == "train" else settings.val
    index = load_index(settings, names)
    if not len(index.table):
        found = errors_of(index.findings) or index.findings
        why = f"; {found[0].place}: {found[0].what}" if found else ""
        raise UserError(f"data.{part} {list(names)} in {root} has no usable picture{why}")
    return Dataset(index.table, index.classes, index.category_ids, index.findings)


def located(settings: DataSettings) -> tuple[DataSettings, Path]:
    """Settings with a concrete format, and the root. Raises UserError where there is no data set."""
    if settings.format == "scenes":
        settings = scene_settings(settings)
    if not settings.root:
        raise UserError("data.root is empty", hint="--set data.root=FOLDER")
    root = Path(settings.root).expanduser()
    if not root.is_dir():
        raise UserError(f"data.root {root} is not a folder", hint="--set data.root=FOLDER")
    format_name = found_format(root, settings) if settings.format == "auto" else settings.format
    return settings.model_copy(update={"format": format_name}), root


def load_index(settings: DataSettings, names: tuple[str, ...]) -> Index:
    """The index of the parts `names`; `settings` come from `located`."""
    root = Path(settings.root).expanduser()
    files, pictures = label_files(root, settings, names)
    return indexed(lambda: READERS[settings.format](root, names, settings), root, files, pictures, parts=names, settings=settings)


def refuse_errors(dataset: Dataset, part: str, settings: DataSettings) -> None:
    """Raises GateError where the part has errors that `data.on_bad` does not allow to leave out."""
    errors = errors_of(dataset.findings)
    if settings.on_bad != "refuse":
        errors = [error for error in errors if error.kind in NEVER_SKIPPED]
    if not errors:
        return
    rows = summary(errors, num_places=1)
    shown = "; ".join(f"{row['count']} x {row['kind']} ({row['first'][0]['place']}: {row['first'][0]['what']})" for row in rows[:4])
    can_skip = all(error.kind not in NEVER_SKIPPED for error in errors)
    skip = "; --set data.on_bad=skip trains without them" if can_skip else ""
    raise GateError(f"data.{part} has errors: {shown}", hint=f"detkit doctor data lists them all{skip}")


def coco_ground_truth(dataset: Dataset) -> dict[str, Any]:
    """The data set as COCO's annotation dict, for COCOeval."""
    annotations: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    for image in dataset.images:
        images.append({"id": image.image_id, "width": image.width, "height": image.height, "file_name": image.path.name})
        columns = (image.boxes_xyxy, image.labels, image.crowd, image.areas_px)
        for (x1, y1, x2, y2), label, crowd, area in zip(*(c.tolist() for c in columns), strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image.image_id,
                    "category_id": dataset.category_ids[label],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": area,
                    "iscrowd": int(crowd),
                }
            )
    categories = [{"id": i, "name": n} for i, n in zip(dataset.category_ids, dataset.classes, strict=True)]
    return {"images": images, "categories": categories, "annotations": annotations}
