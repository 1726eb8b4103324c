"""From pictures to boxes in the original picture, with bad pictures among them."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detkit.core.errors import UserError
from detkit.deploy.contract import read_contract
from detkit.deploy.predict import picture_paths, write_predictions
from detkit.deploy.runners import open_runner
from tests.tiny import write_tiny

pytest.importorskip("onnxruntime")


def picture(path: Path, width: int = 64, height: int = 32) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(path)
    return path


@pytest.mark.parametrize("batch", [1, 2])
def test_boxes_are_in_px_of_the_original_and_drawn(batch: int, tmp_path: Path) -> None:
    artifact = write_tiny(tmp_path / "artifact", batch=batch)
    contract = read_contract(artifact)
    file = picture(tmp_path / "wide.png")
    results = write_predictions(open_runner(artifact, "onnxruntime", contract), contract, [file], tmp_path / "out")
    assert results == {"num_pictures": 1, "num_detections": 2, "skipped": []}
    line = json.loads((tmp_path / "out/detections.jsonl").read_text())
    # 64 x 32 fills the 32 px input at half size, 8 px of border above: x * 2, (y - 8) * 2, clipped to the picture.
    assert line["detections"] == [
        {"box_xyxy": [8, 0, 40, 32], "score": 0.9, "class": "disc"},
        {"box_xyxy": [2, 0, 12, 0], "score": 0.5, "class": "box"},
    ]
    drawn = np.asarray(Image.open(tmp_path / "out/wide.boxes.png"))
    assert drawn.shape == (32, 64, 3) and tuple(drawn[20, 8]) == (230, 60, 60) and tuple(drawn[20, 30]) == (90, 90, 90)


def test_bad_pictures_are_counted_and_equal_names_do_not_replace_each_other(tmp_path: Path) -> None:
    artifact = write_tiny(tmp_path / "artifact")
    contract = read_contract(artifact)
    torn = tmp_path / "torn.jpg"
    torn.write_bytes(b"not a picture")
    files = [picture(tmp_path / "a/1.png"), torn, picture(tmp_path / "b/1.png"), picture(tmp_path / "b/1.bmp")]
    runner = open_runner(artifact, "onnxruntime", contract)
    results = write_predictions(runner, contract, files, tmp_path / "out")
    assert results["num_pictures"] == 3 and results["skipped"] == [str(torn)]
    assert {p.name for p in (tmp_path / "out").glob("*.png")} == {"1.boxes.png", "1-2.boxes.png", "1-3.boxes.png"}
    with pytest.raises(UserError, match="none of the 1 pictures could be read"):
        write_predictions(runner, contract, [torn], tmp_path / "out")


def test_files_folders_and_patterns_are_found_once(tmp_path: Path) -> None:
    one, two = picture(tmp_path / "in/1.png"), picture(tmp_path / "in/2.JPG")
    (tmp_path / "in/notes.txt").write_text("no picture")
    for arguments in ([tmp_path / "in"], [tmp_path / "in/*"], [one, tmp_path / "*/2*", tmp_path / "in"]):
        assert picture_paths(arguments) == [one, two]
    with pytest.raises(UserError, match="there is no"):
        picture_paths([tmp_path / "in/*.gif"])
    with pytest.raises(UserError, match="no pictures in"):
        picture_paths([picture(tmp_path / "x/3.png").parent.parent / "in/*.txt"])
