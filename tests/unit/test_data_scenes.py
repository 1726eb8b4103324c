"""Drawn scenes are the same everywhere, differ between parts, and their boxes fit what can be seen."""

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from detkit.data.dataset import load_dataset
from detkit.data.images import read_image
from detkit.data.scenes import OVERSAMPLING, SHAPES, draw_shape, drawn_scene, scene_settings, visible_box
from detkit.recipe.schema import DataSettings, SceneSettings

SMALL = SceneSettings(num_train=6, num_val=4, picture_hw=(48, 64), max_objects=4)


def scenes_below(root: Path | str = "", scenes: SceneSettings = SMALL) -> DataSettings:
    return DataSettings(format="scenes", root=str(root), scenes=scenes)


def test_scenes_load_like_any_data_set(tmp_path: Path) -> None:
    train, val = (load_dataset(scenes_below(tmp_path), part) for part in ("train", "val"))
    assert (len(train.images), len(val.images)) == (6, 4)
    assert train.classes == SHAPES and train.findings == val.findings == ()
    assert all(len(image.boxes_xyxy) for image in (*train.images, *val.images))
    assert read_image(train.images[0].path).shape == (48, 64, 3)


def test_scenes_depend_on_their_settings_alone(tmp_path: Path) -> None:
    one, other = (Path(scene_settings(scenes_below(tmp_path / name)).root) for name in ("a", "b"))
    assert one.name == other.name
    for path in sorted(one.rglob("*.*")):
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes()
    changed = scene_settings(scenes_below(tmp_path / "a", SMALL.model_copy(update={"seed": 1})))
    assert Path(changed.root).name != one.name


def test_held_out_scenes_are_not_training_scenes(tmp_path: Path) -> None:
    root = Path(scene_settings(scenes_below(tmp_path)).root)
    train, val = ({p.read_bytes() for p in (root / part).glob("*.png")} for part in ("train", "val"))
    assert len(train) == 6 and len(val) == 4 and not train & val


def test_scenes_without_a_root_go_to_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(scene_settings(scenes_below()).root).parent == tmp_path / "detkit"


def draw(root: str) -> str:
    return scene_settings(scenes_below(root)).root


def test_two_processes_drawing_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        roots = pool.map(draw, [str(tmp_path)] * 4, chunksize=1)
    assert len(set(roots)) == 1 and [p.name for p in tmp_path.iterdir()] == [Path(roots[0]).name]
    assert len(load_dataset(scenes_below(tmp_path), "train").images) == 6


def test_boxes_lie_in_the_picture_and_never_exceed_the_wanted_number() -> None:
    for seed in range(20):
        pixels, boxes, labels = drawn_scene(SMALL, np.random.default_rng(seed))
        assert pixels.shape == (48, 64, 3) and len(boxes) == len(labels) <= 4
        assert (boxes >= 0).all() and (boxes <= (64, 48, 64, 48)).all()
        assert (boxes[:, 2:] - boxes[:, :2] >= 1).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_box_is_tight_around_every_shape_and_shrinks_where_it_is_covered(shape: str) -> None:
    turns = np.linspace(0, 2 * np.pi, {"triangle": 3, "cross": 12}.get(shape, 64), endpoint=False)
    outline = np.stack([30 + 15 * np.cos(turns), 20 + 10 * np.sin(turns)], 1)
    shown = Image.new("L", (60 * OVERSAMPLING, 40 * OVERSAMPLING))
    marker = ImageDraw.Draw(shown)
    draw_shape(marker, shape, outline, 1)
    ys, xs = np.nonzero(np.asarray(shown) == 1)
    tight = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]) / OVERSAMPLING
    np.testing.assert_allclose(visible_box(shown, 1), tight)
    marker.rectangle((0, 0, 30 * OVERSAMPLING - 1, 40 * OVERSAMPLING), fill=2)
    covered = visible_box(shown, 1)
    assert covered is not None and covered[0] >= 30 and covered[2] == tight[2]
    marker.rectangle((0, 0, *shown.size), fill=3)
    assert visible_box(shown, 1) is None
