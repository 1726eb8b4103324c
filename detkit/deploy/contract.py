"""The contract of an artifact: how to feed it and how to read what it returns."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detkit.core.errors import UserError
from detkit.core.files import read_json
from detkit.data.detections import Detections, detections_from_table
from detkit.data.geometry import Geometry

VERSION = 1


@dataclass(frozen=True)
class Contract:
    """What contract.json says; `batch` pictures at a time, `normalised` whether the graph wants float32 NCHW."""

    batch: int
    input_name: str
    input_shape: tuple[int, ...]
    input_dtype: str
    normalised: bool
    output_name: str
    output_shape: tuple[int, ...]
    geometry: Geometry
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    score_threshold: float

    def graph_input(self, letterboxed_u8: np.ndarray) -> np.ndarray:
        """What the graph takes for letterboxed pictures (B, S, S, 3) uint8."""
        return self.geometry.normalised(letterboxed_u8) if self.normalised else letterboxed_u8

    def detections(self, table_K6: np.ndarray, original_hw: tuple[int, int]) -> Detections:
        """Detections in px of the original picture."""
        return detections_from_table(table_K6, self.geometry, original_hw)


def read_contract(folder: Path) -> Contract:
    """The contract in `folder`. Raises UserError where it is missing or of another version."""
    path = folder / "contract.json"
    if not path.is_file():
        raise UserError(f"no contract.json in {folder}", hint="detkit export, then detkit compile")
    content = read_json(path)
    if content["version"] != VERSION:
        raise UserError(f"{path} has version {content['version']}, this detkit reads {VERSION}", hint="detkit export")
    return Contract(
        batch=content["input"]["shape"][0],
        input_name=content["input"]["name"],
        input_shape=tuple(content["input"]["shape"]),
        input_dtype=content["input"]["dtype"],
        normalised=content["input"]["normalised"],
        output_name=content["output"]["name"],
        output_shape=tuple(content["output"]["shape"]),
        geometry=Geometry.from_dict(content["geometry"]),
        classes=tuple(content["classes"]),
        category_ids=tuple(content["category_ids"]),
        score_threshold=content["score_threshold"],
    )
