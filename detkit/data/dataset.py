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
class LabelledImage:
    """A picture and its objects.

    `width`, `height` in px after EXIF orientation; `boxes_xyxy` (N, 4) float32 px, right and bottom exclusive;
    `labels` (N,) class indices; `crowd` (N,) objects that are groups, never trained on.
    """

    path: Path
    image_id: int
    width: int
    height: int
    boxes_xyxy: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray


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
    Raises UserError for missing folders and lists, and for labels that cannot be parsed at all.
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
    return checked(reader(root, names, settings))


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
    """The data set without pictures that cannot be decoded and boxes without area inside the picture."""
    with ThreadPoolExecutor() as pool:
        verdicts = list(pool.map(image_problem, dataset.images))
    problems = list(dataset.problems)
    images = []
    for image, verdict in zip(dataset.images, verdicts, strict=True):
        if verdict is not None:
            problems.append(verdict)
            continue
        kept, found = without_empty_boxes(image)
        images.append(kept)
        problems += found
    return replace(dataset, images=tuple(images), problems=tuple(problems))


def image_problem(image: LabelledImage) -> Problem | None:
    """Why a picture cannot be used, or None."""
    try:
        height, width = read_image(image.path).shape[:2]
    except UserError as error:
        return Problem("unreadable picture", str(image.path), error.what)
    if (width, height) != (image.width, image.height):
        what = f"the labels say {image.width}x{image.height} px, the file has {width}x{height} px; picture left out"
        return Problem("wrong size", str(image.path), what)
    return None


def without_empty_boxes(image: LabelledImage) -> tuple[LabelledImage, list[Problem]]:
    """Boxes clipped to the picture, those without area left out and named."""
    limits = np.array([image.width, image.height] * 2, np.float32)
    boxes = np.clip(image.boxes_xyxy, 0, limits)
    sides = boxes[:, 2:] - boxes[:, :2]
    keep = np.isfinite(image.boxes_xyxy).all(1) & (sides > 0).all(1)
    problems = [
        Problem(
            "empty box",
            f"{image.path.name} object {index + 1}",
            f"box {np.round(image.boxes_xyxy[index], 2).tolist()} has no area inside the picture; left out",
        )
        for index in np.flatnonzero(~keep)
    ]
    kept = replace(image, boxes_xyxy=boxes[keep], labels=image.labels[keep], crowd=image.crowd[keep])
    return kept, problems


def coco_ground_truth(dataset: Dataset) -> dict[str, Any]:
    """The data set as COCO's annotation dict, for COCOeval."""
    annotations: list[dict[str, Any]] = []
    for image in dataset.images:
        for (x1, y1, x2, y2), label, crowd in zip(
            image.boxes_xyxy.tolist(), image.labels.tolist(), image.crowd.tolist(), strict=True
        ):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image.image_id,
                    "category_id": dataset.category_ids[label],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1),
                    "iscrowd": int(crowd),
                }
            )
    return {
        "images": [
            {"id": i.image_id, "width": i.width, "height": i.height, "file_name": i.path.name} for i in dataset.images
        ],
        "categories": [{"id": i, "name": n} for i, n in zip(dataset.category_ids, dataset.classes, strict=True)],
        "annotations": annotations,
    }


def labelled_image(
    path: Path,
    image_id: int,
    size_wh: tuple[int, int],
    *,
    boxes: Sequence[Sequence[float]],
    labels: Sequence[int],
    crowd: Sequence[bool] | None = None,
) -> LabelledImage:
    """A LabelledImage from plain lists."""
    return LabelledImage(
        path=path,
        image_id=image_id,
        width=size_wh[0],
        height=size_wh[1],
        boxes_xyxy=np.asarray(boxes, np.float32).reshape(-1, 4),
        labels=np.asarray(labels, np.int64),
        crowd=np.zeros(len(labels), bool) if crowd is None else np.asarray(crowd, bool),
    )
