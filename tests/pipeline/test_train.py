"""Training on drawn scenes: it learns, resumes exactly, stops on a non-finite loss and runs in several processes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from detkit.core.errors import GateError, UserError
from detkit.recipe.schema import Recipe
from detkit.train import loop
from detkit.train.stage import train_stage

pytestmark = pytest.mark.slow


def small_recipe(**changes: Any) -> Recipe:
    base = {
        "data.format": "scenes",
        "data.image_size_px": 64,
        "data.workers": 0,
        "data.scenes": {"num_train": 12, "num_val": 6, "picture_hw": (48, 64), "max_objects": 3},
        "data.augment.close_last_epochs": 1,
        "model.block": "plain",
        "train.epochs": 2,
        "train.batch": 4,
        "train.eval_every_epochs": 100,
        "train.probe_images": 2,
    }
    return Recipe().derive(base | changes)


@pytest.fixture(autouse=True)
def scenes_are_drawn_below_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def trained(folder: Path, recipe: Recipe, **options: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    work: Any = SimpleNamespace(folder=folder, recipe=recipe, options=options)
    return train_stage(work)


def test_train_leaves_model_card_probe_curves_and_one_row_per_epoch(tmp_path: Path) -> None:
    results = trained(tmp_path / "a", small_recipe())
    card = json.loads((tmp_path / "a/model.json").read_text())
    probe = np.load(tmp_path / "a/probe.npz")
    rows = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert 0 <= results["ap"] <= 1 and results["iterations"] == 6
    assert card["num_classes"] == len(card["classes"]) and card["fused"] is False
    assert probe["images_u8"].shape == (2, 64, 64, 3) and probe["scores_BAC"].dtype == np.float64
    assert [row["epoch"] for row in rows] == [1, 2] and "ap" in rows[-1]
    assert (tmp_path / "a/plots/curves.png").stat().st_size > 5000


def test_probe_outputs_are_those_of_the_saved_model(tmp_path: Path) -> None:
    from detkit.data.geometry import Geometry
    from detkit.models.files import load_model
    from detkit.train.probe import raw_outputs

    trained(tmp_path / "a", small_recipe())
    model, card = load_model(tmp_path / "a")
    probe = np.load(tmp_path / "a/probe.npz")
    again = raw_outputs(model, probe["images_u8"], Geometry.from_dict(card["geometry"]), dtype=torch.float64)
    for name in ("scores_BAC", "boxes_BA4"):
        np.testing.assert_allclose(again[name], probe[name], rtol=1e-12, atol=1e-12)


def whole_and_cut(folder: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Weights of an uninterrupted run, of one cut at its first checkpoint and resumed, and the progress of all its checkpoints."""
    trained(folder / "whole", recipe)
    original, seen = loop.save, []

    def save_then_die(trainee: loop.Trainee, at: Path) -> None:
        original(trainee, at)
        seen.append(trainee.progress)
        if len(seen) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save", save_then_die)
    with pytest.raises(KeyboardInterrupt):
        trained(folder / "cut", recipe)
    trained(folder / "cut", recipe)
    whole, cut = (safetensors.torch.load_file(folder / n / "model.safetensors") for n in ("whole", "cut"))
    assert whole.keys() == cut.keys()
    return whole, cut, seen


def test_resumed_weights_equal_the_uninterrupted_run_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut, seen = whole_and_cut(tmp_path, small_recipe(**{"train.epochs": 3}), monkeypatch)
    assert [progress.epoch for progress in seen] == [1, 2, 3]
    assert all(torch.equal(whole[k], cut[k]) for k in whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_cut_within_an_epoch_goes_on_at_that_step_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    recipe = small_recipe(**{"train.batch": 3, "train.checkpoint_every_iterations": 3, "data.workers": workers, "data.cache_mb": 0})
    whole, cut, seen = whole_and_cut(tmp_path, recipe, monkeypatch)
    assert [progress.iteration for progress in seen] == [3, 4, 6, 8]
    assert all(torch.equal(whole[k], cut[k]) for k in whole)
    rows = [[json.loads(line) for line in (tmp_path / n / "metrics.jsonl").read_text().splitlines()] for n in ("whole", "cut")]
    for one, other in zip(*rows, strict=True):
        assert {k: v for k, v in one.items() if "loss" in k} == pytest.approx(
            {k: v for k, v in other.items() if "loss" in k}, rel=1e-6
        )


def test_a_non_finite_loss_stops_the_run_and_names_step_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = loop.detection_loss

    def poisoned(*args: Any, **kwargs: Any) -> Any:
        losses = original(*args, **kwargs)
        return loop.Losses(losses.total * float("nan"), losses.dense_score, losses.score, losses.box)

    monkeypatch.setattr(loop, "detection_loss", poisoned)
    with pytest.raises(UserError, match=r"the loss is nan at iteration 0 .*pictures: .+"):
        trained(tmp_path / "a", small_recipe())
    assert not (tmp_path / "a/model.safetensors").exists()


def test_accuracy_below_the_recipes_promise_fails_the_gate(tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"the recipe expects 0\.9900"):
        trained(tmp_path / "a", small_recipe(**{"expect.ap": 0.99}))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_trains_to_finite_weights(tmp_path: Path, precision: str) -> None:
    trained(tmp_path / "a", small_recipe(**{"train.precision": precision, "train.epochs": 1}))
    weights = safetensors.torch.load_file(tmp_path / "a/model.safetensors")
    assert all(torch.isfinite(w).all() for w in weights.values())


def test_accumulated_micro_batches_take_the_same_number_of_steps(tmp_path: Path) -> None:
    results = trained(tmp_path / "a", small_recipe(**{"train.max_batch_per_device": 2}))
    assert results["iterations"] == 6


def test_two_processes_train_and_score_like_one(tmp_path: Path) -> None:
    from detkit.train.evaluate import evaluate_torch

    recipe = small_recipe(**{"train.epochs": 1})
    results = trained(tmp_path / "two", recipe, nproc=2)
    alone = evaluate_torch(tmp_path / "two", recipe.data)
    assert results["num_processes"] == 2 and results["iterations"] == 3
    # Scores of sharded validation equal those of one process on the saved weights.
    assert results["ap"] == pytest.approx(alone["ap"], abs=1e-9)


def test_two_processes_normalise_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The statistics that two halves of a batch leave are those of one process with the whole batch, and each other's."""
    recipe = small_recipe(**{"train.epochs": 1, "train.norm": "sync", "train.lr": 1e-12, "train.ema_decay": 0.0})
    trained(tmp_path / "two", recipe, nproc=2)
    assert "batch norm over 4 pictures of 2 processes" in capfd.readouterr().err
    trained(tmp_path / "one", small_recipe(**{"train.epochs": 1, "train.lr": 1e-12, "train.ema_decay": 0.0}))
    trained(tmp_path / "apart", small_recipe(**{"train.epochs": 1, "train.lr": 1e-12, "train.ema_decay": 0.0}), nproc=2)
    states = {n: safetensors.torch.load_file(tmp_path / n / "model.safetensors") for n in ("one", "two", "apart")}
    names = [name for name in states["one"] if name.endswith("running_var")]
    assert len(names) > 10

    def worst(run: str) -> float:
        pairs = [(states[run][name], states["one"][name]) for name in names]
        return max(float(((one - other).abs() / other.abs().clamp_min(1e-6)).max()) for one, other in pairs)

    assert worst("two") < 1e-4 < worst("apart")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.norm_group": 3}, r"train.norm_group is 3; 1 processes with 4 pictures at a time can normalise 4 together"),
        ({"model.block": "dbb", "model.block_statistics": "sampled"}, r"model.block_statistics is sampled"),
    ],
)
def test_norm_groups_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        trained(tmp_path / "a", small_recipe(**{"train.norm": "sync", **changes}))


def test_tensorboard_reads_the_same_numbers_as_metrics_jsonl(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(tmp_path / "a", small_recipe())
    events = EventAccumulator(str(tmp_path / "a/tensorboard")).Reload()
    rows = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert [e.step for e in events.Scalars("loss/box")] == [1, 2]
    np.testing.assert_allclose([e.value for e in events.Scalars("loss/box")], [row["loss_box"] for row in rows], rtol=1e-5)
