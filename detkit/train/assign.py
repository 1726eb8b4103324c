"""Task-aligned assignment: which anchors learn which object, and how good a score they should give."""

from dataclasses import dataclass

import torch
from torch import Tensor

# B images, A anchors, M objects of the fullest image, C classes.


@dataclass(frozen=True)
class Targets:
    """What the anchors should say.

    `scores_BAC` soft class targets in [0, 1]; `object_BA` index of the anchor's object; `positive_BA` whether it has one.
    """

    scores_BAC: Tensor
    object_BA: Tensor
    positive_BA: Tensor


@dataclass(frozen=True)
class Alignment:
    """How anchors are ranked: score^alpha * IoU^beta, and how many an object takes."""

    num_candidates: int
    alpha: float
    beta: float


@dataclass(frozen=True)
class Overlaps:
    """What assignment needs to know of boxes: IoU and whether the anchor's centre lies in the object."""

    iou_BMA: Tensor
    inside_BMA: Tensor


def overlaps(boxes_BA4: Tensor, centres_A2: Tensor, objects_BM4: Tensor, valid_BM: Tensor) -> Overlaps:
    """IoU of every predicted box with every object, zero for padding, and centre-inside tests. All xyxy in px."""
    x, y = centres_A2.unbind(-1)
    x1, y1, x2, y2 = objects_BM4.unsqueeze(2).unbind(-1)
    inside = (x > x1) & (x < x2) & (y > y1) & (y < y2) & valid_BM.unsqueeze(-1)
    a1, b1, a2, b2 = boxes_BA4.unsqueeze(1).unbind(-1)
    width = (torch.minimum(a2, x2) - torch.maximum(a1, x1)).clamp(min=0)
    height = (torch.minimum(b2, y2) - torch.maximum(b1, y1)).clamp(min=0)
    overlap = width * height
    union = (a2 - a1) * (b2 - b1) + (x2 - x1) * (y2 - y1) - overlap
    return Overlaps(overlap / union.clamp(min=1e-9) * valid_BM.unsqueeze(-1), inside)


def assign_targets(scores_BAC: Tensor, found: Overlaps, labels_BM: Tensor, rule: Alignment) -> Targets:
    """Task-aligned assignment (Feng et al., TOOD, ICCV 2021, section 3.2).

    Alignment t = score^alpha * IoU^beta; every object takes the `rule.num_candidates` anchors of highest t whose centres it
    holds; an anchor wanted twice goes to the object of higher IoU. Soft target = t scaled so that an object's best
    anchor gets the object's best IoU. `scores_BAC` are probabilities; labels of padding may be any valid class.
    """
    num_images, num_anchors, _ = scores_BAC.shape
    num_objects = labels_BM.shape[1]
    empty = torch.zeros(num_images, num_anchors, dtype=torch.long, device=scores_BAC.device)
    if num_objects == 0:
        return Targets(torch.zeros_like(scores_BAC), empty, empty.bool())
    index = labels_BM.unsqueeze(1).expand(-1, num_anchors, -1)
    object_scores_BMA = scores_BAC.gather(2, index).transpose(1, 2)
    alignment = object_scores_BMA.pow(rule.alpha) * found.iou_BMA.pow(rule.beta) * found.inside_BMA
    best, anchor = alignment.topk(min(rule.num_candidates, num_anchors), dim=-1)
    chosen_BMA = torch.zeros_like(found.inside_BMA).scatter_(-1, anchor, best > 0)
    wanted = torch.where(chosen_BMA, found.iou_BMA, -1.0)
    top_iou, object_BA = wanted.max(dim=1)
    positive_BA = top_iou >= 0
    kept_BMA = chosen_BMA & (torch.arange(num_objects, device=anchor.device)[:, None] == object_BA.unsqueeze(1))
    alignment = alignment * kept_BMA
    peak_alignment = alignment.amax(-1, keepdim=True)
    peak_iou = (found.iou_BMA * kept_BMA).amax(-1, keepdim=True)
    quality_BA = (alignment * peak_iou / peak_alignment.clamp(min=1e-9)).amax(1)
    label_BA = labels_BM.gather(1, object_BA)
    scores = torch.zeros_like(scores_BAC).scatter_(2, label_BA.unsqueeze(-1), (quality_BA * positive_BA).unsqueeze(-1))
    return Targets(scores, object_BA, positive_BA)
