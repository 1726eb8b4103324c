"""How far two tables of detections differ, robust against rows whose equal scores swap places."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detkit.core.errors import GateError

# N pictures, K rows x1 y1 x2 y2 score label.


@dataclass(frozen=True)
class TableDifference:
    """Largest differences relative to the largest absolute expected value, and rows without a partner.

    `num_compared` of the `num_rows` rows had their boxes compared; the others tie with the lowest score of their table.
    """

    boxes: float
    scores: float
    num_unmatched: int
    num_compared: int
    num_rows: int


def table_difference(actual_NK6: np.ndarray, expected_NK6: np.ndarray, *, tolerance: float) -> TableDifference:
    """Compare sorted scores place by place, and boxes row by row after pairing rows of equal label and score.

    A row pairs with the closest box among rows of its label whose score differs by at most ten tolerances, relative to
    the largest score, so that the low scores of a barely trained network are told apart too. The last rows of a full
    table may differ where scores tie at the cut, so rows at the lowest score need no partner.
    """
    num_rows = int(expected_NK6.shape[0] * expected_NK6.shape[1])
    if actual_NK6.shape != expected_NK6.shape:
        return TableDifference(np.inf, np.inf, num_rows, 0, num_rows)
    finite = np.isfinite(actual_NK6)
    if not finite.all():
        # A NaN compares as false, and would leave every maximum below untouched.
        boxes, scores = (0.0 if part.all() else np.inf for part in (finite[..., :4], finite[..., 4]))
        return TableDifference(boxes, scores, num_rows, 0, num_rows)
    largest_score = float(np.abs(expected_NK6[..., 4]).max())
    scores = float(np.abs(actual_NK6[..., 4] - expected_NK6[..., 4]).max() / largest_score)
    largest = float(np.abs(expected_NK6[..., :4]).max())
    slack = 10 * tolerance * largest_score
    worst, unmatched, compared = 0.0, 0, 0
    for actual, expected in zip(actual_NK6, expected_NK6, strict=True):
        for row in expected[expected[:, 4] > expected[:, 4].min() + slack]:
            compared += 1
            same = actual[(actual[:, 5] == row[5]) & (np.abs(actual[:, 4] - row[4]) <= slack)]
            if not len(same):
                unmatched += 1
                continue
            worst = max(worst, float(np.abs(same[:, :4] - row[:4]).max(1).min()) / largest)
    return TableDifference(worst, scores, unmatched, compared, num_rows)


def gate_tables(actual_NK6: np.ndarray, expected_NK6: np.ndarray, *, tolerance: float, hop: str) -> TableDifference:
    """The difference, or GateError naming the output where it exceeds `tolerance` or is not a number."""
    found = table_difference(actual_NK6, expected_NK6, tolerance=tolerance)
    for name, value in (("boxes", found.boxes), ("scores", found.scores)):
        if not value <= tolerance:
            raise GateError(
                f"{hop}: {name} of `detections` differ by {value:.3g} relative, more than {tolerance:.3g}",
                hint="--set export.tolerance=... only with a reason",
            )
    if found.num_unmatched:
        raise GateError(f"{hop}: {found.num_unmatched} of {found.num_rows} detections have no equal partner")
    if not found.num_compared:
        raise GateError(f"{hop}: all scores of the probe tie, so no box could be compared", hint="train for longer")
    return found


def onnxruntime_outputs(model: Path, inputs: np.ndarray) -> np.ndarray:
    """The graph's first output on `inputs`, in ONNX Runtime on the CPU, in batches of the graph's fixed size.

    Raises GateError where ONNX Runtime does not take the graph.
    """
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors  # type: ignore[attr-defined]

    refused = (ort_errors.Fail, ort_errors.InvalidGraph, ort_errors.InvalidProtobuf, ort_errors.NotImplemented)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except refused as error:
        raise GateError(f"ONNX Runtime does not take {model.name}: {error}", hint="detkit export --force") from error
    entry = session.get_inputs()[0]
    batch = int(entry.shape[0])
    padded = np.concatenate([inputs, np.repeat(inputs[-1:], -len(inputs) % batch, axis=0)])
    rows = [
        session.run(None, {entry.name: padded[i : i + batch]})[0]  # type: ignore[index]
        for i in range(0, len(padded), batch)
    ]
    return np.concatenate(rows)[: len(inputs)]  # type: ignore[arg-type]
