"""Backbones from timm and torchvision with features at strides 8, 16 and 32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from detkit.core.errors import UserError

STRIDES = (8, 16, 32)


class FeatureBackbone(nn.Module):
    """Wraps a network that returns features: (B, 3, H, W) -> features at strides 8, 16, 32 with `channels` channels."""

    def __init__(self, body: nn.Module, channels: Sequence[int]) -> None:
        super().__init__()
        self.body = body
        self.channels = (channels[0], channels[1], channels[2])

    def forward(self, images_BCHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.body(images_BCHW)
        p3, p4, p5 = features.values() if isinstance(features, dict) else features
        return p3, p4, p5


def feature_backbone(name: str, *, pretrained: str) -> FeatureBackbone:
    """`timm:NAME` or `torchvision:NAME` with random weights, weights from a file, or the library's own (`hub`).

    Raises UserError for unknown names, networks without the three strides and weight files that do not fit.
    """
    library, _, model_name = name.partition(":")
    makers = {"timm": timm_backbone, "torchvision": torchvision_backbone}
    if library not in makers or not model_name:
        raise UserError(f"model.backbone is {name!r}", hint="--set model.backbone=detkit, timm:resnet18 or torchvision:mobilenet_v2")
    return makers[library](model_name, pretrained)


def timm_backbone(name: str, pretrained: str) -> FeatureBackbone:
    """A timm network cut after strides 8, 16 and 32."""
    import timm

    if not timm.is_model(name):
        near = ", ".join(timm.list_models(f"*{name[:6]}*")[:5]) or "see timm.list_models()"
        raise UserError(f"timm has no network {name!r}", hint=f"near: {near}")
    probe: Any = timm.create_model(name, features_only=True)
    reductions = probe.feature_info.reduction()
    if not set(STRIDES) <= set(reductions):
        raise UserError(f"timm:{name} has features at strides {reductions}, detkit needs 8, 16 and 32")
    indices = tuple(len(reductions) - 1 - reductions[::-1].index(stride) for stride in STRIDES)
    overlay = {"file": pretrained} if pretrained not in ("", "hub") else None
    body: Any = timm.create_model(
        name, features_only=True, out_indices=indices, pretrained=bool(pretrained), pretrained_cfg_overlay=overlay
    )
    return FeatureBackbone(body, body.feature_info.channels())


def torchvision_backbone(name: str, pretrained: str) -> FeatureBackbone:
    """A torchvision classifier cut at the last node of strides 8, 16 and 32."""
    import torchvision
    from torchvision.models.feature_extraction import create_feature_extractor

    if name not in torchvision.models.list_models(module=torchvision.models):
        raise UserError(f"torchvision has no network {name!r}", hint="--set model.backbone=torchvision:mobilenet_v2")
    network = torchvision.models.get_model(name, weights="DEFAULT" if pretrained == "hub" else None)
    if pretrained not in ("", "hub"):
        load_weights(network, Path(pretrained))
    nodes, channels = nodes_at_strides(network, name)
    return FeatureBackbone(create_feature_extractor(network, return_nodes=nodes), channels)


def nodes_at_strides(network: nn.Module, name: str) -> tuple[dict[str, str], list[int]]:
    """Names of the last nodes at strides 8, 16, 32 and their channels, found by running one picture through."""
    from torchvision.models.feature_extraction import create_feature_extractor

    side = 256
    # Top-level stages only: `layer3` of a ResNet, `features.6` of the sequential networks.
    stages = [n for n, m in network.named_children() if not isinstance(m, nn.Sequential) or n.startswith("layer")]
    stages += [f"features.{n}" for n, _ in getattr(network, "features", nn.Module()).named_children()]
    found: dict[int, tuple[str, int]] = {}
    for stage in stages:
        try:
            extractor = create_feature_extractor(network, return_nodes={stage: "x"}, suppress_diff_warning=True)
        except ValueError:
            continue
        with torch.no_grad():
            output = extractor.eval()(torch.zeros(1, 3, side, side))["x"]
        if output.dim() == 4 and output.shape[2] > 1 and side % output.shape[2] == 0:
            found[side // output.shape[2]] = (stage, output.shape[1])
    if not set(STRIDES) <= found.keys():
        raise UserError(f"torchvision:{name} has features at strides {sorted(found)}, detkit needs 8, 16 and 32")
    return {found[s][0]: str(s) for s in STRIDES}, [found[s][1] for s in STRIDES]


def load_weights(network: nn.Module, path: Path) -> None:
    """Load a state dict from `path` (safetensors or torch) into `network`, strictly."""
    import safetensors.torch

    if not path.is_file():
        raise UserError(f"no weights at {path}", hint="--set model.pretrained=FILE, or hub, or nothing")
    if path.suffix == ".safetensors":
        state = safetensors.torch.load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"the weights in {path} do not fit: {error}") from error
