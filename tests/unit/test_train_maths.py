"""Losses, assignment, schedules and averages against closed forms and independent implementations."""

import math

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from detkit.core.errors import UserError
from detkit.train import schedule
from detkit.train.assign import Alignment, assign_targets, overlaps
from detkit.train.device import micro_batches
from detkit.train.ema import WeightAverage
from detkit.train.loader import EpochOrder
from detkit.train.loss import box_loss, detection_loss, generalised_iou, score_loss


def random_boxes(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 200
    return torch.cat([corner, corner + 5 + torch.rand(count, 2, generator=generator) * 90], 1)


def test_generalised_iou_equals_torchvision() -> None:
    a, b = random_boxes(50, 1), random_boxes(50, 2)
    expected = torchvision.ops.generalized_box_iou(a, b).diagonal()
    torch.testing.assert_close(generalised_iou(a, b), expected, atol=1e-6, rtol=0)


def test_overlaps_equal_torchvision_iou_and_ignore_padding() -> None:
    boxes, objects = random_boxes(30, 3), random_boxes(4, 4)
    valid = torch.tensor([[True, True, True, False]])
    found = overlaps(boxes[None], (boxes[:, :2] + boxes[:, 2:]) / 2, objects[None], valid)
    expected = torchvision.ops.box_iou(objects, boxes)
    torch.testing.assert_close(found.iou_BMA[0, :3], expected[:3], atol=1e-6, rtol=0)
    assert not found.inside_BMA[0, 3].any() and found.iou_BMA[0, 3].sum() == 0


def assignment(num_candidates: int):
    # Nine anchors in a row, 10 px apart, each predicting a 20 px box around itself; two objects.
    centres = torch.stack([torch.arange(9) * 10.0 + 5, torch.full((9,), 50.0)], 1)
    boxes = torch.cat([centres - 10, centres + 10], 1)[None]
    objects = torch.tensor([[[0.0, 40, 30, 60], [50.0, 40, 90, 60]]])
    labels, valid = torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)
    scores = torch.full((1, 9, 2), 0.5)
    found = overlaps(boxes, centres, objects, valid)
    return found, assign_targets(scores, found, labels, Alignment(num_candidates, 0.5, 6.0))


def test_one_candidate_gives_every_object_its_best_anchor_with_its_iou() -> None:
    found, targets = assignment(1)
    assert targets.positive_BA.sum() == 2
    for index in range(2):
        anchor = int((targets.positive_BA[0] & (targets.object_BA[0] == index)).nonzero())
        assert anchor == int((found.iou_BMA[0, index] * found.inside_BMA[0, index]).argmax())
        assert targets.scores_BAC[0, anchor, index] == pytest.approx(float(found.iou_BMA[0, index].max()))


def test_soft_targets_are_alignment_scaled_to_the_best_iou() -> None:
    found, targets = assignment(3)
    for index in range(2):
        own = targets.positive_BA[0] & (targets.object_BA[0] == index)
        iou = found.iou_BMA[0, index, own]
        alignment = 0.5**0.5 * iou**6
        expected = alignment / alignment.max() * iou.max()
        torch.testing.assert_close(targets.scores_BAC[0, own, index], expected)


def test_an_image_without_objects_has_no_positives_and_a_finite_loss() -> None:
    centres = torch.rand(6, 2) * 64
    outputs = {
        "boxes_BA4": torch.cat([centres - 4, centres + 4], 1)[None].requires_grad_(),
        "scores_BAC": torch.zeros(1, 6, 2, requires_grad=True),
        "dense_scores_BAC": torch.zeros(1, 6, 2, requires_grad=True),
    }
    objects, labels = torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.long)
    losses = detection_loss(outputs, centres, objects, labels, valid_BM=torch.zeros(1, 1, dtype=torch.bool))
    losses.total.backward()
    # Only background: 12 logits of zero cost log 2 each, in both scorers.
    assert float(losses.total.detach()) == pytest.approx(24 * math.log(2), rel=1e-6)


def test_perfect_boxes_cost_nothing() -> None:
    _, targets = assignment(1)
    objects = torch.tensor([[[0.0, 40, 30, 60], [50.0, 40, 90, 60]]])
    boxes = objects[0][targets.object_BA[0]][None]
    assert float(box_loss(boxes, objects, targets)) == pytest.approx(0.0, abs=1e-6)


def test_score_loss_equals_binary_cross_entropy_written_out() -> None:
    _, targets = assignment(3)
    logits = torch.randn(1, 9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p, t = logits.sigmoid(), targets.scores_BAC.double()
    expected = -(t * p.log() + (1 - t) * (1 - p).log()).sum() / max(1.0, float(t.sum()))
    assert float(score_loss(logits, targets)) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(("progress", "factor"), [(0.0, 1.0), (0.5, 0.505), (1.0, 0.01)])
def test_cosine_ends_where_it_should(progress: float, factor: float) -> None:
    assert schedule.cosine(progress, final=0.01) == pytest.approx(factor)


@pytest.mark.parametrize(("progress", "factor"), [(0.0, 1.0), (0.67, 0.1), (0.9, 0.01)])
def test_step_divides_by_ten(progress: float, factor: float) -> None:
    assert schedule.step(progress, steps=(0.67, 0.89)) == pytest.approx(factor)


def test_warmup_grows_by_equal_amounts() -> None:
    factors = [schedule.warmup(i, num_iterations=4) for i in range(6)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_average_equals_the_recurrence_in_float64() -> None:
    model = nn.Linear(1, 1, bias=False).double()
    average = WeightAverage(model, decay=0.9, warmup_iterations=3)
    expected = model.weight.item()
    for t in range(1, 8):
        with torch.no_grad():
            model.weight.add_(1.0)
        average.update(model)
        decay = 0.9 * (1 - math.exp(-t / 3))
        expected = decay * expected + (1 - decay) * model.weight.item()
    assert average.model.weight.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("batch", "world_size", "most", "expected"),
    [(16, 1, 64, (16, 1)), (16, 2, 64, (8, 1)), (256, 1, 64, (64, 4)), (12, 1, 5, (4, 3)), (7, 1, 2, (1, 7))],
)
def test_micro_batches_multiply_to_the_global_batch(batch: int, world_size: int, most: int, expected: tuple[int, int]) -> None:
    per_device, steps = micro_batches(batch, world_size=world_size, max_batch_per_device=most)
    assert (per_device, steps) == expected
    assert per_device * steps * world_size == batch


def test_a_batch_that_does_not_divide_is_refused_with_one_that_does() -> None:
    with pytest.raises(UserError, match="16, which 3 processes") as caught:
        micro_batches(16, world_size=3, max_batch_per_device=64)
    assert "train.batch=15" in caught.value.hint


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_an_epoch_without_gaps_or_repeats(world_size: int) -> None:
    shares = [list(EpochOrder(50, batch=8, rank=r, world_size=world_size, seed=3)) for r in range(world_size)]
    assert {len(s) for s in shares} == {48 // world_size}
    everything = [i for share in shares for i in share]
    assert len(set(everything)) == 48
    # The global batch is the same set of pictures for every world size.
    alone = list(EpochOrder(50, batch=8, rank=0, world_size=1, seed=3))
    assert {i for share in shares for i in share[: 8 // world_size]} == set(alone[:8])


def test_fewer_pictures_than_a_batch_repeat() -> None:
    assert sorted(EpochOrder(3, batch=8, rank=0, world_size=1, seed=0)).count(0) in (2, 3)
    assert len(np.unique(list(EpochOrder(3, batch=8, rank=0, world_size=1, seed=0)))) == 3
