"""The same training code on an NVIDIA GPU."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from detkit.recipe.schema import Recipe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_training_on_a_gpu_ends_with_finite_scores(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from detkit.train.stage import train_stage

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = Recipe().derive(
        {
            "data.format": "scenes",
            "data.image_size_px": 64,
            "data.scenes": {"num_train": 12, "num_val": 6, "picture_hw": (48, 64), "max_objects": 3},
            "train": {"epochs": 2, "batch": 4, "precision": precision},
        }
    )
    (tmp_path / "train").mkdir()
    results = train_stage(SimpleNamespace(folder=tmp_path / "train", recipe=recipe, options={}))  # type: ignore[arg-type]
    assert results["device"].startswith("cuda") and 0 <= results["ap"] <= 1
