"""The probe: real validation pictures with the trained model's outputs, on which later stages prove equality."""

import copy
import io
from pathlib import Path

import numpy as np
import torch
from torch import nn

from detkit.core.files import write_bytes_atomically
from detkit.data.dataset import Dataset
from detkit.data.geometry import Geometry
from detkit.data.images import read_image
from detkit.models.deploy import top_detections
from detkit.recipe.schema import Recipe

PROBE = "probe.npz"

# N probe pictures, A anchors, C classes, K rows of the detection table.


def write_probe(folder: Path, model: nn.Module, validation: Dataset, geometry: Geometry, *, recipe: Recipe) -> None:
    """Write probe.npz for an evenly spread choice of validation pictures.

    Arrays: `images_u8` (N, H, W, 3) letterboxed RGB; `scores_BAC` and `boxes_BA4` raw outputs in float64;
    `detections` (N, K, 6) float32; `image_ids` (N,); `original_hw` (N, 2).
    """
    count = min(recipe.train.probe_images, len(validation.images))
    chosen = [validation.images[i] for i in np.linspace(0, len(validation.images) - 1, count).round().astype(int)]
    pictures = [read_image(image.path, upright=image.upright) for image in chosen]
    images_u8 = np.stack([geometry.letterbox(picture) for picture in pictures])
    outputs = raw_outputs(model, images_u8, geometry, dtype=torch.float64)
    single = raw_outputs(model, images_u8, geometry, dtype=torch.float32)
    table = top_detections(
        torch.from_numpy(single["scores_BAC"]),
        torch.from_numpy(single["boxes_BA4"]),
        max_detections=recipe.model.max_detections,
    )
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        images_u8=images_u8,
        detections=table.numpy(),
        image_ids=np.array([image.image_id for image in chosen]),
        original_hw=np.array([picture.shape[:2] for picture in pictures]),
        scores_BAC=outputs["scores_BAC"],
        boxes_BA4=outputs["boxes_BA4"],
    )
    write_bytes_atomically(folder / PROBE, buffer.getvalue())


@torch.no_grad()
def raw_outputs(model: nn.Module, images_u8: np.ndarray, geometry: Geometry, *, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Raw outputs of a copy of `model` in evaluation mode and in `dtype`, on the CPU, one picture at a time."""
    network = copy.deepcopy(model).eval().cpu().to(dtype)
    inputs = torch.from_numpy(geometry.normalised(images_u8)).to(dtype)
    rows = [network(inputs[i : i + 1]) for i in range(len(inputs))]
    return {name: torch.cat([row[name] for row in rows]).numpy() for name in rows[0]}
