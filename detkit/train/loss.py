"""Detection losses: pure functions of predictions, objects and assignment."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from detkit.train.assign import Alignment, Targets, assign_targets, overlaps

# B images, A anchors, M objects of the fullest image, C classes, P positive anchors.

# Candidates per object and exponents of score and IoU. The one-to-one scorer weighs its own score more, so that the
# anchor which leads keeps the lead instead of changing with every small change of the boxes.
DENSE = Alignment(num_candidates=10, alpha=0.5, beta=6.0)
ONE_TO_ONE = Alignment(num_candidates=1, alpha=1.0, beta=4.0)
SCORE_WEIGHT = 1.0
BOX_WEIGHT = 2.5
SIDE_WEIGHT = 1.0


@dataclass(frozen=True)
class Losses:
    """Scalars: `total` to minimise, its parts for the log."""

    total: Tensor
    dense_score: Tensor
    score: Tensor
    box: Tensor


def detection_loss(
    outputs: dict[str, Tensor], centres_A2: Tensor, objects_BM4: Tensor, labels_BM: Tensor, *, valid_BM: Tensor
) -> Losses:
    """Loss of a training batch in float32.

    `outputs` as Detector gives them in training; `centres_A2` anchor centres in px; `objects_BM4` xyxy in px of the
    network input, padded; `valid_BM` tells objects from padding. The dense scorer learns from the ten best anchors
    of each object, the one-to-one scorer from the single best; boxes learn from the dense anchors.
    """
    boxes, dense, single = outputs["boxes_BA4"], outputs["dense_scores_BAC"], outputs["scores_BAC"]
    with torch.no_grad():
        found = overlaps(boxes, centres_A2, objects_BM4, valid_BM)
        many = assign_targets(dense.sigmoid(), found, labels_BM, DENSE)
        one = assign_targets(single.sigmoid(), found, labels_BM, ONE_TO_ONE)
    dense_score = score_loss(dense, many)
    score = score_loss(single, one)
    box = box_loss(boxes, objects_BM4, many)
    return Losses(SCORE_WEIGHT * (dense_score + score) + box, dense_score.detach(), score.detach(), box.detach())


def score_loss(logits_BAC: Tensor, targets: Targets) -> Tensor:
    """Binary cross-entropy against soft targets, divided by the targets' sum (at least one)."""
    summed = F.binary_cross_entropy_with_logits(logits_BAC, targets.scores_BAC, reduction="sum")
    return summed / targets.scores_BAC.sum().clamp(min=1.0)


def box_loss(boxes_BA4: Tensor, objects_BM4: Tensor, targets: Targets) -> Tensor:
    """GIoU loss plus L1 relative to the object's size, weighted by each anchor's target score."""
    weight_P = targets.scores_BAC.sum(-1)[targets.positive_BA]
    if weight_P.numel() == 0:
        return boxes_BA4.sum() * 0.0
    predicted_P4 = boxes_BA4[targets.positive_BA]
    wanted_BA4 = objects_BM4.gather(1, targets.object_BA.unsqueeze(-1).expand(-1, -1, 4))
    wanted_P4 = wanted_BA4[targets.positive_BA]
    sides_P2 = (wanted_P4[:, 2:] - wanted_P4[:, :2]).clamp(min=1.0)
    relative_P = ((predicted_P4 - wanted_P4).abs() / sides_P2.repeat(1, 2)).sum(-1)
    per_anchor = BOX_WEIGHT * (1.0 - generalised_iou(predicted_P4, wanted_P4)) + SIDE_WEIGHT * relative_P
    return (per_anchor * weight_P).sum() / weight_P.sum().clamp(min=1.0)


def generalised_iou(a_P4: Tensor, b_P4: Tensor) -> Tensor:
    """GIoU of paired boxes xyxy, in (-1, 1] (Rezatofighi et al., CVPR 2019)."""
    overlap = (torch.minimum(a_P4[:, 2:], b_P4[:, 2:]) - torch.maximum(a_P4[:, :2], b_P4[:, :2])).clamp(min=0).prod(-1)
    hull = (torch.maximum(a_P4[:, 2:], b_P4[:, 2:]) - torch.minimum(a_P4[:, :2], b_P4[:, :2])).prod(-1)
    union = (a_P4[:, 2:] - a_P4[:, :2]).prod(-1) + (b_P4[:, 2:] - b_P4[:, :2]).prod(-1) - overlap
    return overlap / union.clamp(min=1e-9) - (hull - union) / hull.clamp(min=1e-9)
