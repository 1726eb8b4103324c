"""Borrowed backbones under detkit's neck and head: strides, gradients, fusing, weights from a file, and refusals."""

from pathlib import Path

import pytest
import torch

from detkit.core.errors import UserError
from detkit.models.build import build_detector
from detkit.models.fuse import fused
from detkit.models.pretrained import feature_backbone
from detkit.recipe.schema import ModelSettings


@pytest.mark.parametrize("size", ["n", "s", "m"])
def test_three_sizes_grow(size: str) -> None:
    counts = {s: sum(p.numel() for p in build_detector(ModelSettings(size=s, block="plain"), 2).parameters()) for s in "nsm"}
    assert counts["n"] < counts["s"] < counts["m"]
    outputs = build_detector(ModelSettings(size=size, block="plain"), 2).eval()(torch.zeros(1, 3, 64, 96))
    assert outputs["scores_BAC"].shape == (1, 8 * 12 + 4 * 6 + 2 * 3, 2) and outputs["boxes_BA4"].shape == (1, 126, 4)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["timm:mobilenetv2_050", "torchvision:resnet18", "torchvision:mobilenet_v3_small"])
def test_borrowed_backbones_fit_the_same_neck_and_head(backbone: str) -> None:
    torch.manual_seed(0)
    model = build_detector(ModelSettings(backbone=backbone, block="repvgg"), 3)
    assert [int(64 / f.shape[2]) for f in model.backbone(torch.zeros(2, 3, 64, 64))] == [8, 16, 32]
    outputs = model.train()(torch.randn(4, 3, 64, 64))
    (outputs["scores_BAC"].sum() + outputs["boxes_BA4"].sum()).backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.backbone.parameters())
    images = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    expected, actual = model.double().eval()(images), fused(model)(images)
    for name in ("scores_BAC", "boxes_BA4"):
        assert ((actual[name] - expected[name]).abs().max() / expected[name].abs().max()).item() <= 1e-9


@pytest.mark.slow
def test_weights_of_a_backbone_come_from_a_file(tmp_path: Path) -> None:
    import torchvision

    network = torchvision.models.resnet18()
    torch.save(network.state_dict(), tmp_path / "w.pth")
    loaded = feature_backbone("torchvision:resnet18", pretrained=str(tmp_path / "w.pth"))
    assert torch.equal(loaded.state_dict()["body.conv1.weight"], network.conv1.weight)
    torch.save({"x": torch.zeros(1)}, tmp_path / "bad.pth")
    with pytest.raises(UserError, match="do not fit"):
        feature_backbone("torchvision:resnet18", pretrained=str(tmp_path / "bad.pth"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18", "model.backbone is 'resnet18'"),
        ("timm:resnet81", "timm has no network"),
        ("torchvision:resnet81", "torchvision has no network"),
        ("timm:vit_tiny_patch16_224", "detkit needs 8, 16 and 32"),
        ("torchvision:alexnet", "detkit needs 8, 16 and 32"),
    ],
)
def test_backbones_that_do_not_exist_or_fit_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        feature_backbone(name, pretrained="")
