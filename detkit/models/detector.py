"""The detector: backbone, neck and head, handed in ready-made."""

from torch import Tensor, nn


class Detector(nn.Module):
    """Normalised pictures (B, 3, H, W) -> raw outputs, H and W multiples of 32.

    In evaluation `scores_BAC` (logits) and `boxes_BA4` (xyxy, px of the network input); in training also
    `dense_scores_BAC`. A counts the anchors of strides 8, 16 and 32, in that order, row by row.
    """

    def __init__(self, *, backbone: nn.Module, neck: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.head = head

    def forward(self, images_BCHW: Tensor) -> dict[str, Tensor]:
        return self.head(self.neck(self.backbone(images_BCHW)))
