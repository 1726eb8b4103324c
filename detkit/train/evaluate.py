"""Score a torch detector with COCOeval, sharded over the processes of the job."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from detkit.data.dataset import Dataset, coco_ground_truth, load_dataset
from detkit.data.detections import Detections, detections_from_table
from detkit.data.geometry import Geometry
from detkit.data.images import read_image
from detkit.metrics.coco import evaluate_boxes
from detkit.models.deploy import DeployDetector
from detkit.models.files import load_model
from detkit.train.device import Placement

# B images, K rows of the detection table.


def evaluate_torch(folder: Any, settings: Any, *, batch: int = 8) -> dict[str, Any]:
    """COCO scores of the model saved in `folder` (train or fuse) on the validation parts of `settings` (DataSettings)."""
    model, card = load_model(folder)
    dataset = load_dataset(settings, "val")
    geometry = Geometry.from_dict(card["geometry"])
    deployed = DeployDetector(model, card["model"]["max_detections"])
    alone = Placement(torch.device("cpu"), 0, 1)
    scores = scored(deployed, dataset, geometry, place=alone, batch=batch)
    assert scores is not None
    return scores


@torch.no_grad()
def scored(deployed: nn.Module, dataset: Dataset, geometry: Geometry, *, place: Placement, batch: int) -> dict[str, Any] | None:
    """Scores and `results` rows on the first rank, None on the others; every rank detects its share of the pictures.

    The shares are gathered once, at the end, so the ranks may hold different numbers of pictures, even none.
    """
    mine = dataset.images[place.rank :: place.world_size]
    results: list[dict[str, Any]] = []
    for start in range(0, len(mine), batch):
        for image, detections in detected(deployed, mine[start : start + batch], geometry, device=place.device):
            results += detections.coco_results(image.image_id, dataset.category_ids)
    if place.world_size > 1:
        shares: list[Any] = [None] * place.world_size if place.is_first else []
        dist.gather_object(results, shares if place.is_first else None)
        results = [row for share in shares for row in share]
    if not place.is_first:
        return None
    # COCOeval breaks ties by order, so the order must not depend on how the pictures were shared.
    results.sort(key=lambda row: row["image_id"])
    return evaluate_boxes(coco_ground_truth(dataset), results) | {"results": results}


def detected(deployed: nn.Module, images: Any, geometry: Geometry, *, device: torch.device) -> list[tuple[Any, Detections]]:
    """Each image with its detections in px of the original picture."""
    pictures = [read_image(image.path, upright=image.upright) for image in images]
    inputs = np.stack([geometry.letterbox(picture) for picture in pictures])
    tensor = torch.from_numpy(geometry.normalised(inputs)).to(device)
    table_BK6 = deployed(tensor).float().cpu().numpy()
    return [
        (image, detections_from_table(table, geometry, picture.shape[:2]))
        for image, table, picture in zip(images, table_BK6, pictures, strict=True)
    ]


def anchor_centres_for(size_px: int) -> Tensor:
    """Centres of all anchors of a square input, (A, 2) px, in the head's order."""
    from detkit.models.head import STRIDES, anchor_centres

    return torch.cat([anchor_centres(size_px // s, size_px // s, s) for s in STRIDES])
