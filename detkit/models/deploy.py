"""The graph that ships: raw outputs turned into a fixed-shape table of detections, without NMS."""

import torch
from torch import Tensor, nn

# B images, A anchors, C classes, K rows of the table.


class DeployDetector(nn.Module):
    """Detector plus top-k.

    Takes normalised pictures (B, 3, H, W) float32, or with `mean` and `std` given uint8 RGB pictures (B, H, W, 3).
    Returns (B, K, 6): x1, y1, x2, y2 in px of the network input, score in [0, 1], label; rows sorted by score.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        detector: nn.Module,
        max_detections: int,
        *,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
    ) -> None:
        super().__init__()
        self.detector = detector
        self.max_detections = max_detections
        self.takes_uint8 = mean is not None and std is not None
        if mean is not None and std is not None:
            std_3 = torch.tensor(std, dtype=torch.float32)
            self.register_buffer("scale", (1.0 / (255.0 * std_3)).view(1, 3, 1, 1))
            self.register_buffer("shift", (-torch.tensor(mean, dtype=torch.float32) / std_3).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        if self.takes_uint8:
            images = images.permute(0, 3, 1, 2).to(self.scale.dtype) * self.scale + self.shift
        outputs = self.detector(images)
        return top_detections(outputs["scores_BAC"], outputs["boxes_BA4"], max_detections=self.max_detections)


def top_detections(scores_BAC: Tensor, boxes_BA4: Tensor, *, max_detections: int) -> Tensor:
    """The K best (anchor, class) pairs as (B, K, 6), K = min(max_detections, A * C), scores after the sigmoid."""
    num_classes = scores_BAC.shape[-1]
    flat = scores_BAC.flatten(1)
    top_logits, index_BK = flat.topk(min(max_detections, flat.shape[1]), dim=1)
    anchor_BK = torch.div(index_BK, num_classes, rounding_mode="trunc")
    label_BK = index_BK - anchor_BK * num_classes
    boxes_BK4 = boxes_BA4.gather(1, anchor_BK.unsqueeze(-1).expand(-1, -1, 4))
    columns = [boxes_BK4, top_logits.sigmoid().unsqueeze(-1), label_BK.to(boxes_BK4.dtype).unsqueeze(-1)]
    return torch.cat(columns, -1)
