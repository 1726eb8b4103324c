"""One rank of a training started by torchrun: `python -m detkit.train.worker FOLDER`."""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from detkit.core.errors import UserError
from detkit.core.files import write_json_atomically
from detkit.recipe.schema import Recipe
from detkit.train.launch import RECIPE, SCORES, end_with_parent
from detkit.train.stage import trained


def main(folder: Path) -> int:
    """Train as this rank; the first rank leaves its results in the folder."""
    end_with_parent()
    recipe = Recipe.model_validate(json.loads((folder / RECIPE).read_text()))
    try:
        results = trained(folder, recipe)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if results:
        write_json_atomically(folder / SCORES, results)
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
