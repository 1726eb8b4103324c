"""Learning-rate schedules: functions of progress in [0, 1]."""

import math
from collections.abc import Sequence


def cosine(progress: float, *, final: float) -> float:
    """Factor from 1 to `final` along half a cosine."""
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


def step(progress: float, *, steps: Sequence[float]) -> float:
    """Factor 1, divided by ten at each progress in `steps`."""
    return 0.1 ** sum(progress >= s for s in steps)


def warmup(iteration: int, *, num_iterations: int) -> float:
    """Factor that grows by the same amount every iteration and reaches 1 at `num_iterations`."""
    return 1.0 if num_iterations == 0 else min(1.0, (iteration + 1) / num_iterations)


def scaled_lr(lr: float, *, batch: int, lr_batch: int) -> float:
    """Linear scaling (Goyal et al., 2017): the rate grows with the global batch."""
    return lr * batch / lr_batch
