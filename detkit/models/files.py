"""Save and load a detector: weights as safetensors beside a card that says how to rebuild it."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from detkit.core.errors import UserError
from detkit.core.files import write_json_atomically
from detkit.models.build import build_detector
from detkit.models.fuse import fused
from detkit.recipe.schema import ModelSettings

WEIGHTS = "model.safetensors"
CARD = "model.json"


def save_model(folder: Path, model: nn.Module, card: dict[str, Any]) -> None:
    """Write `model.safetensors` and `model.json` into `folder`.

    `card` holds `model` (settings), `num_classes`, `classes`, `category_ids`, `image_size_px`, `geometry` and `fused`.
    """
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / WEIGHTS)
    write_json_atomically(folder / CARD, card)


def load_model(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Rebuild the detector of `folder` in evaluation mode, float32, with its card.

    Raises UserError where a file is missing or the weights do not fit the card.
    """
    for name in (WEIGHTS, CARD):
        if not (folder / name).is_file():
            raise UserError(f"no {name} in {folder}", hint="detkit status")
    card = json.loads((folder / CARD).read_text())
    settings = ModelSettings.model_validate(card["model"]).model_copy(update={"pretrained": ""})
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = build_detector(settings, card["num_classes"])
    if card["fused"]:
        model = fused(model)
    try:
        model.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS))
    except RuntimeError as error:
        raise UserError(f"the weights in {folder} do not fit its model.json: {error}", hint="detkit status") from error
    return model.eval(), card
