"""Validation pictures with ground truth and detections drawn side by side, as data URIs."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from detkit.data.dataset import Dataset
from detkit.data.images import read_image
from detkit.data.table import LabelledImage

COLOURS = ((214, 69, 65), (44, 119, 204), (38, 150, 90), (214, 137, 16), (136, 78, 160), (23, 150, 150))
SHOWN_WIDTH_PX = 420


def picture_pairs(dataset: Dataset, results: list[dict[str, Any]], *, count: int, threshold: float) -> list[tuple[str, str, str]]:
    """(file name, ground truth, detections) of evenly spread pictures; the two pictures are data URIs."""
    chosen = np.linspace(0, len(dataset.images) - 1, min(count, len(dataset.images))).round().astype(int)
    label_of = {category: label for label, category in enumerate(dataset.category_ids)}
    pairs = []
    for image in (dataset.images[i] for i in chosen):
        found = [r for r in results if r["image_id"] == image.image_id and r["score"] >= threshold]
        boxes = [[r["bbox"][0], r["bbox"][1], r["bbox"][0] + r["bbox"][2], r["bbox"][1] + r["bbox"][3]] for r in found]
        labels = [label_of[r["category_id"]] for r in found]
        truth = drawn(image, image.boxes_xyxy.tolist(), image.labels.tolist())
        pairs.append((image.path.name, truth, drawn(image, boxes, labels)))
    return pairs


def drawn(image: LabelledImage, boxes: Sequence[Sequence[float]], labels: Sequence[int]) -> str:
    """The picture with boxes, as a JPEG data URI."""
    picture = Image.fromarray(read_image(image.path, upright=image.upright))
    scale = SHOWN_WIDTH_PX / picture.width
    picture = picture.resize((SHOWN_WIDTH_PX, max(1, round(picture.height * scale))))
    draw = ImageDraw.Draw(picture)
    for box, label in zip(boxes, labels, strict=True):
        draw.rectangle([v * scale for v in box], outline=COLOURS[label % len(COLOURS)], width=2)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
