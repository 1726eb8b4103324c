"""Build a detector from the model section of a recipe."""

from torch import nn

from detkit.models.backbone import PlainBackbone
from detkit.models.detector import Detector
from detkit.models.head import TwoWayHead
from detkit.models.layers import BlockStyle
from detkit.models.neck import PyramidNeck
from detkit.models.pretrained import feature_backbone
from detkit.recipe.schema import ModelSettings

NECK_WIDTHS = {"n": 48, "s": 96, "m": 128}


def build_detector(settings: ModelSettings, num_classes: int) -> Detector:
    """A detector with fresh weights; draws from torch's global random generator.

    Raises UserError for a backbone that timm or torchvision does not know, or that lacks strides 8, 16 and 32.
    """
    style = BlockStyle(settings.block, settings.block_statistics)
    backbone: nn.Module
    if settings.backbone == "detkit":
        own = PlainBackbone(settings.size, style=style)
        backbone, channels = own, own.channels
    else:
        borrowed = feature_backbone(settings.backbone, pretrained=settings.pretrained)
        backbone, channels = borrowed, borrowed.channels
    width = NECK_WIDTHS[settings.size]
    return Detector(
        backbone=backbone,
        neck=PyramidNeck(channels, width=width, style=style),
        head=TwoWayHead(width, num_classes, style=style),
    )
