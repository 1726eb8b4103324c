"""Pictures to boxes with an artifact: COCO-like JSON and annotated pictures."""

import glob
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from detkit.core.console import say
from detkit.core.errors import UserError
from detkit.data.detections import Detections
from detkit.data.images import read_image
from detkit.deploy.contract import Contract
from detkit.deploy.runners import Runner

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
COLOURS = ((230, 60, 60), (60, 140, 230), (50, 170, 90), (230, 150, 30), (150, 80, 200), (20, 170, 170))


def predicted(
    runner: Runner, contract: Contract, paths: Sequence[Path]
) -> Iterator[tuple[Path, np.ndarray | None, Detections | None]]:
    """Each path with its pixels and detections above the contract's threshold; None for a picture that cannot be read."""
    for path in paths:
        try:
            picture = read_image(path)
        except UserError as error:
            say(f"skipped: {error.what}")
            yield path, None, None
            continue
        letterboxed = np.repeat(contract.geometry.letterbox(picture)[None], contract.batch, axis=0)
        table = runner(contract.graph_input(letterboxed))[0]
        found = contract.detections(table, (picture.shape[0], picture.shape[1]))
        yield path, picture, found.above(contract.score_threshold)


def write_predictions(runner: Runner, contract: Contract, paths: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Write detections.jsonl and one annotated picture each into `folder`; return counts and skipped files.

    Raises UserError where not one picture could be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    skipped: list[str] = []
    num_detections = 0
    names = drawing_names(paths)
    with (folder / "detections.jsonl").open("w") as file:
        for path, picture, found in predicted(runner, contract, paths):
            if picture is None or found is None:
                skipped.append(str(path))
                continue
            num_detections += len(found)
            file.write(json.dumps({"file": str(path), "detections": rows(found, contract)}) + "\n")
            annotated(picture, found, contract.classes).save(folder / names[path])
    if len(skipped) == len(paths):
        raise UserError(f"none of the {len(paths)} pictures could be read", hint="see the reasons above")
    return {"num_pictures": len(paths) - len(skipped), "num_detections": num_detections, "skipped": skipped}


def drawing_names(paths: Sequence[Path]) -> dict[Path, str]:
    """File name of each annotated picture; pictures of the same stem get a number, so that none replaces another."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for path in dict.fromkeys(paths):
        candidates = (f"{path.stem}{f'-{n}' if n > 1 else ''}.boxes.png" for n in range(1, len(paths) + 2))
        names[path] = next(name for name in candidates if name not in taken)
        taken.add(names[path])
    return names


def rows(found: Detections, contract: Contract) -> list[dict[str, Any]]:
    """Detections as plain values."""
    return [
        {"box_xyxy": [round(v, 2) for v in box], "score": round(score, 4), "class": contract.classes[label]}
        for box, score, label in zip(found.boxes_xyxy.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
    ]


def annotated(picture: np.ndarray, found: Detections, classes: Sequence[str]) -> Image.Image:
    """The picture with boxes, class names and scores drawn on it."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    width = max(1, round(max(image.size) / 320))
    for box, score, label in zip(found.boxes_xyxy.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True):
        colour = COLOURS[label % len(COLOURS)]
        draw.rectangle(box, outline=colour, width=width)
        text = f"{classes[label]} {score:.2f}"
        left, top = box[0] + width, max(0, box[1] - 12)
        draw.rectangle(draw.textbbox((left, top), text), fill=colour)
        draw.text((left, top), text, fill=(255, 255, 255))
    return image


def picture_paths(arguments: Sequence[Path]) -> list[Path]:
    """Files, pictures of folders and of patterns such as `photos/*.jpg`, in order, each once.

    Raises UserError for what does not exist and for an empty result.
    """
    found: list[Path] = []
    for argument in arguments:
        if argument.is_dir():
            found += sorted(p for p in argument.iterdir() if p.suffix.lower() in SUFFIXES)
        elif argument.is_file():
            found.append(argument)
        elif matching := sorted(map(Path, glob.glob(str(argument), recursive=True))):  # noqa: PTH207  Path.glob takes no absolute one
            found += [p for p in matching if p.suffix.lower() in SUFFIXES]
        else:
            raise UserError(f"there is no {argument}", hint="detkit predict RUN PICTURE... or FOLDER")
    if not found:
        raise UserError(f"no pictures in {', '.join(map(str, arguments))}", hint=f"it looks for {', '.join(SUFFIXES)}")
    return list(dict.fromkeys(found))
