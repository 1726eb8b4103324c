"""Anchor-free head: one box per anchor, a one-to-one score for deployment and a dense score that exists only in training."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detkit.models.layers import BlockAct, BlockStyle

# B images, A anchors over all strides, C classes, H W feature height and width.

STRIDES = (8, 16, 32)
PRIOR = 0.01


class ScoreTower(nn.Module):
    """Class logits of one pyramid level: (B, width, H, W) -> (B, C, H, W)."""

    def __init__(self, width: int, num_classes: int, *, style: BlockStyle) -> None:
        super().__init__()
        self.mix = BlockAct(width, width, style=style, smooth=True)
        self.predict = nn.Conv2d(width, num_classes, 1)
        nn.init.constant_(self.predict.bias, -math.log((1 - PRIOR) / PRIOR))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(self.mix(x))


class BoxTower(nn.Module):
    """Distances from the anchor to left, top, right, bottom, in strides: (B, width, H, W) -> (B, 4, H, W)."""

    def __init__(self, width: int, *, style: BlockStyle) -> None:
        super().__init__()
        self.mix = BlockAct(width, width, style=style, smooth=True)
        self.predict = nn.Conv2d(width, 4, 1)
        nn.init.normal_(self.predict.weight, std=0.01)
        nn.init.constant_(self.predict.bias, 1.5)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.predict(self.mix(x))


class TwoWayHead(nn.Module):
    """Boxes shared by two scorers.

    The dense scorer learns from many anchors per object and shapes the features quickly. The one-to-one scorer learns
    from one anchor per object and therefore needs no NMS; it is what deployment keeps.

    Returns `scores_BAC` (logits) and `boxes_BA4` (xyxy, px of the network input), and in training also
    `dense_scores_BAC`. After `without_training_parts` the dense scorer is gone.
    """

    def __init__(self, width: int, num_classes: int, *, style: BlockStyle) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.score = nn.ModuleList(ScoreTower(width, num_classes, style=style) for _ in STRIDES)
        self.box = nn.ModuleList(BoxTower(width, style=style) for _ in STRIDES)
        self.dense_score: nn.ModuleList | None = nn.ModuleList(ScoreTower(width, num_classes, style=style) for _ in STRIDES)

    def forward(self, features: Sequence[Tensor]) -> dict[str, Tensor]:
        boxes = [decoded(tower(x), stride) for tower, x, stride in zip(self.box, features, STRIDES, strict=True)]
        outputs = {"scores_BAC": flattened(self.score, features), "boxes_BA4": torch.cat(boxes, 1)}
        if self.training and self.dense_score is not None:
            outputs["dense_scores_BAC"] = flattened(self.dense_score, features)
        return outputs

    def without_training_parts(self) -> list[str]:
        """Drop what only training needs, in place, and return the names of what was dropped."""
        if self.dense_score is None:
            return []
        self.dense_score = None
        return ["dense_score"]


def flattened(towers: nn.ModuleList, features: Sequence[Tensor]) -> Tensor:
    """Scores of all levels as float (B, A, C); logits leave reduced precision here."""
    levels = [tower(x).flatten(2).transpose(1, 2) for tower, x in zip(towers, features, strict=True)]
    return single(torch.cat(levels, 1))


def decoded(raw_B4HW: Tensor, stride: int) -> Tensor:
    """Boxes xyxy (B, H * W, 4) in px of the network input, from distances in strides passed through softplus."""
    height, width = raw_B4HW.shape[-2:]
    left_top_right_bottom = F.softplus(single(raw_B4HW.flatten(2).transpose(1, 2))) * stride
    centres = anchor_centres(height, width, stride).to(left_top_right_bottom)
    return torch.cat([centres - left_top_right_bottom[..., :2], centres + left_top_right_bottom[..., 2:]], -1)


def anchor_centres(height: int, width: int, stride: int) -> Tensor:
    """Centres xy of a level's cells, (H * W, 2), px of the network input, row by row."""
    y = (torch.arange(height, dtype=torch.float32) + 0.5) * stride
    x = (torch.arange(width, dtype=torch.float32) + 0.5) * stride
    return torch.stack([x.repeat(height), y.repeat_interleave(width)], -1)


def single(x: Tensor) -> Tensor:
    """Bring half-precision values to float32 and leave float32 and float64 alone."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
