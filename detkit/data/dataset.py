"""Labelled pictures in one representation, whichever format they came in, with what was left out and why."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from detkit.core.errors import UserError
from detkit.data.images import read_image
from detkit.recipe.schema import DataSettings


@dataclass(frozen=True)
class Problem:
    """Something left out: `place` names file and object, `what` says why."""

    kind: str
    place: str
    what: str


@dataclass(frozen=True)
class LabelledObject:
    """An object as a label file gives it: `name` within the file, `box_xyxy` px, `area_px` where the file has its own."""

    name: str
    box_xyxy: tuple[float, float, float, float]
    label: int
    crowd: bool = False
    area_px: float | None = None


@dataclass(frozen=True)
class LabelledImage:
    """A picture and its objects.

    `width`, `height` in px after EXIF orientation; `boxes_xyxy` (N, 4) float32 px, right and bottom exclusive, inside
    the picture; `labels` (N,) class indices; `crowd` (N,) objects that are groups, never trained on; `areas_px` (N,)
    float32 by which COCO sorts objects into small, medium and large (the mask's area where the labels give it).
    """

    path: Path
    image_id: int
    width: int
    height: int
    boxes_xyxy: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    areas_px: np.ndarray


@dataclass(frozen=True)
class Dataset:
    """Pictures of one part, class names in label order, original category ids and everything that was left out."""

    images: tuple[LabelledImage, ...]
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    problems: tuple[Problem, ...]


def load_dataset(settings: DataSettings, part: str) -> Dataset:
    """The `train` or `val` part that `settings` names.

    Every picture is decoded once; unreadable ones and boxes without area are left out and listed in `problems`.
    Raises UserError for missing folders and lists, for labels that cannot be parsed at all, and if no picture is left.
    """
    from detkit.data.coco import read_coco
    from detkit.data.scenes import scene_settings
    from detkit.data.voc import read_voc

    if settings.format == "scenes":
        settings = scene_settings(settings)
    if not settings.root:
        raise UserError("data.root is empty", hint="--set data.root=FOLDER")
    root = Path(settings.root).expanduser()
    if not root.is_dir():
        raise UserError(f"data.root {root} is not a folder", hint="--set data.root=FOLDER")
    format_name = found_format(root) if settings.format == "auto" else settings.format
    reader = {"coco": read_coco, "voc": read_voc}[format_name]
    names = settings.train if part == "train" else settings.val
    dataset = checked(reader(root, names, settings))
    if not dataset.images:
        why = f"; {dataset.problems[0].place}: {dataset.problems[0].what}" if dataset.problems else ""
        raise UserError(f"data.{part} {list(names)} in {root} has no usable picture{why}")
    return dataset


def found_format(root: Path) -> str:
    """`voc` or `coco` by what lies in `root`. Raises UserError where neither does."""
    if (root / "Annotations").is_dir() and (root / "ImageSets" / "Main").is_dir():
        return "voc"
    if any(root.glob("*.json")) or any((root / "annotations").glob("*.json")):
        return "coco"
    raise UserError(
        f"{root} holds neither VOC (Annotations/, ImageSets/Main/) nor COCO (annotations/*.json) labels",
        hint="--set data.root=FOLDER or --set data.format=coco|voc",
    )


def checked(dataset: Dataset) -> Dataset:
    """The data set without pictures that cannot be decoded whole or whose size is not the labels'."""
    with ThreadPoolExecutor() as pool:
        verdicts = list(pool.map(image_problem, dataset.images))
    images = [image for image, verdict in zip(dataset.images, verdicts, strict=True) if verdict is None]
    found = [verdict for verdict in verdicts if verdict is not None]
    return replace(dataset, images=tuple(images), problems=(*dataset.problems, *found))


def image_problem(image: LabelledImage) -> Problem | None:
    """Why a picture cannot be used, or None."""
    try:
        height, width = read_image(image.path).shape[:2]
    except UserError as error:
        return Problem("unreadable picture", str(image.path), error.what)
    if (width, height) != (image.width, image.height):
        sizes = f"the labels say {image.width}x{image.height} px, the upright picture has {width}x{height} px"
        return Problem("wrong size", str(image.path), f"{sizes}; picture left out")
    return None


def labelled_image(
    path: Path, image_id: int, size_wh: tuple[int, int], *, objects: Sequence[LabelledObject]
) -> tuple[LabelledImage, list[Problem]]:
    """A picture with its objects' boxes clipped to it; boxes without area inside it are left out and named."""
    width, height = size_wh
    given = np.array([thing.box_xyxy for thing in objects], np.float32).reshape(-1, 4)
    boxes = np.clip(given, 0, np.array([width, height] * 2, np.float32))
    keep = np.isfinite(given).all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1)
    problems = [
        Problem(
            "empty box",
            f"{path.name} {objects[index].name}",
            f"box {np.round(given[index], 2).tolist()} has no area inside the picture; left out",
        )
        for index in np.flatnonzero(~keep).tolist()
    ]
    box_areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    own_areas = np.array([np.nan if thing.area_px is None else thing.area_px for thing in objects], np.float32)
    image = LabelledImage(
        path=path,
        image_id=image_id,
        width=width,
        height=height,
        boxes_xyxy=boxes[keep],
        labels=np.array([thing.label for thing in objects], np.int64)[keep],
        crowd=np.array([thing.crowd for thing in objects], bool)[keep],
        areas_px=np.where(np.isnan(own_areas), box_areas, own_areas)[keep],
    )
    return image, problems


def coco_ground_truth(dataset: Dataset) -> dict[str, Any]:
    """The data set as COCO's annotation dict, for COCOeval."""
    annotations: list[dict[str, Any]] = []
    for image in dataset.images:
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
    return {
        "images": [{"id": i.image_id, "width": i.width, "height": i.height, "file_name": i.path.name} for i in dataset.images],
        "categories": [{"id": i, "name": n} for i, n in zip(dataset.category_ids, dataset.classes, strict=True)],
        "annotations": annotations,
    }
