"""Semantic labels: folders of PNGs whose pixels are class ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detkit.core.errors import UserError
from detkit.data.content import opened
from detkit.data.folders import pictures_below
from detkit.data.images import UNREADABLE
from detkit.data.labels import Labels
from detkit.data.paths import below
from detkit.data.yolo import configuration
from detkit.recipe.schema import DataSettings

# Pixels of this value belong to no class, in every data set; data.ignore_ids names others.
IGNORED = 255


def read_png_masks(root: Path, parts: Sequence[str], settings: DataSettings) -> Labels:
    """Pictures of `parts` with a PNG of class ids each.

    Pictures lie in images/PART or PART (or data.images/PART), masks in masks/PART or PARTannot (or data.labels/PART),
    under the same name. Class names come from classes or names of a YAML file in root, else they are the ids that occur.
    """
    labels = Labels("object")
    config = configuration(root, settings)
    names = config.get("classes", config.get("names"))
    named = {int(key): str(name) for key, name in numbered(names) if str(key).isdigit() and len(str(key)) < 10}
    occurring: set[int] = set()
    anchors = [root, (root / settings.labels).parent] if settings.labels else [root]
    for part in parts:
        given = config[part] if isinstance(config.get(part), dict) else {}
        pictures_at = first_folder(root, anchors, [given.get("images"), f"{settings.images}/{part}", f"images/{part}", part])
        masks_at = first_folder(root, anchors, [given.get("masks"), f"{settings.labels}/{part}", f"masks/{part}", f"{part}annot"])
        masks = {path.relative_to(masks_at).with_suffix(""): path for path in pictures_below(masks_at)}
        for picture in pictures_below(pictures_at):
            mask = masks.pop(picture.relative_to(pictures_at).with_suffix(""), None)
            if mask is None:
                labels.found("missing mask", str(picture), f"there is no mask of that name in {masks_at}")
                continue
            labels.add_file(mask)
            found = checked_mask(mask, picture, set(named), settings.ignore_ids, labels)
            if found is not None:
                occurring |= found[1]
                labels.add_image(picture, len(labels.paths) + 1, size_wh=found[0], semantic=mask)
        for path in masks.values():
            labels.found("mask without picture", str(path), f"there is no picture of that name in {pictures_at}")
    labels.categories = dict(sorted((named or {number: str(number) for number in occurring}).items()))
    return labels


def numbered(names: Any) -> list[tuple[Any, Any]]:
    """Class ids and names, from a mapping or a list."""
    if isinstance(names, dict):
        return list(names.items())
    return list(enumerate(names)) if isinstance(names, list) else []


def first_folder(root: Path, anchors: list[Path], places: list[str | None]) -> Path:
    """The first of the places below the anchors that is a folder inside root. Raises UserError naming all."""
    found = (
        below(root, anchor, name) for place in places if place for anchor in anchors for name in (place, place.removeprefix("../"))
    )
    wanted = list(dict.fromkeys(path for path in found if path is not None))
    folder = next((path for path in wanted if path.is_dir()), None)
    if folder is None:
        raise UserError(f"no folder {' or '.join(map(str, wanted))}", hint="--set data.images=FOLDER --set data.labels=FOLDER")
    return folder


def mask_ids(path: Path) -> np.ndarray:
    """Class ids (H, W) int64 of a mask. Raises UserError where it cannot be read or has several channels."""
    try:
        with opened(path) as file, Image.open(file) as picture:
            ids = np.asarray(picture).astype(np.int64)
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as a picture: {error}") from error
    if ids.ndim != 2:
        raise UserError(f"{path} is no mask of one channel")
    return ids


def checked_mask(
    mask: Path, picture: Path, known: set[int], ignored: Sequence[int], labels: Labels
) -> tuple[tuple[int, int], set[int]] | None:
    """Size and class ids of a mask, or None after naming why it cannot be used. Without `known`, every id is a class."""
    try:
        with opened(mask) as file, opened(picture) as beside, Image.open(file) as found, Image.open(beside) as shown:
            if found.mode not in ("L", "P", "I;16", "I", "1"):
                labels.found("wrong mask", str(mask), f"mode {found.mode}; a mask has one channel of class ids")
                return None
            if found.size != shown.size:
                what = f"{found.size[0]}x{found.size[1]} px, its picture has {shown.size[0]}x{shown.size[1]} px"
                labels.found("wrong mask", str(mask), what)
                return None
            size, ids = found.size, {int(value) for value in np.unique(np.asarray(found))}
    except (*UNREADABLE, Image.DecompressionBombError) as error:
        labels.found("wrong mask", str(mask), f"it or its picture cannot be read: {error}")
        return None
    ids -= {IGNORED, *ignored}
    unknown = sorted(ids - known) if known else []
    if unknown:
        labels.found("wrong mask", str(mask), f"it has the ids {unknown[:8]}, which are no classes")
        return None
    return size, ids
