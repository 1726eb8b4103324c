"""Recipes: strict YAML, one extends, Python, --set, all errors at once, origins."""

from pathlib import Path

import pytest

from detkit.core.errors import RecipeError, UserError
from detkit.recipe.load import changed, load, load_recipe, load_sourced, setting_names, yaml_from_recipe
from detkit.recipe.schema import Recipe, Section

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def written(folder: Path, text: str, name: str = "r.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda p: p.name)
def test_shipped_recipes_load_and_survive_a_round_trip(path: Path, tmp_path: Path) -> None:
    recipe = load(path)
    assert load(written(tmp_path, yaml_from_recipe(recipe))) == recipe


def test_every_setting_has_a_sentence() -> None:
    def fields(section: type[Section]):
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                yield from fields(field.annotation)
            else:
                yield name, field.description

    assert [name for name, text in fields(Recipe) if not (text or "").endswith(".")] == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("1E-4", 1e-4), ("5e-3", 0.005), (".5", 0.5), ("2", 2.0)],
)
def test_numbers_are_read_as_people_write_them(tmp_path: Path, text: str, value: float) -> None:
    assert load(written(tmp_path, f"train: {{lr: {text}}}")).train.lr == value


@pytest.mark.parametrize("word", ["on", "yes", "True", "off"])
def test_only_true_and_false_are_booleans(tmp_path: Path, word: str) -> None:
    from detkit.recipe.yaml_loader import read_yaml

    assert read_yaml(written(tmp_path, f"a: {word}")).content == {"a": word}


def test_all_errors_come_at_once_with_file_line_value_reason_and_nearest_name(tmp_path: Path) -> None:
    path = written(tmp_path, "train:\n  lr: -1\n  epoch: 3\nmodle: {}\ndata:\n  augment:\n    scale: [2, 1]\n")
    with pytest.raises(RecipeError) as caught:
        load(path)
    text = caught.value.what
    assert f"{path}:2: train.lr = -1: input should be greater than 0" in text
    assert f"{path}:3: there is no setting train.epoch; did you mean train.epochs?" in text
    assert f"{path}:4: there is no setting modle; did you mean model?" in text
    assert f"{path}:6: data.augment" in text and "got 2.0, 1.0" in text
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  lr: 1\n  lr: 2\n", r":3: train\.lr is set twice, first on line 2"),
        ("train: [", r":1: not valid YAML|:2: not valid YAML"),
        ("- a\n", "a recipe is a mapping"),
        ("extends: nothing.yaml\n", "there is no"),
        ("extends: [a, b]\n", "takes the path of one recipe"),
    ],
)
def test_broken_files_are_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(written(tmp_path, text))


def test_extends_lays_one_recipe_over_another_and_origins_tell_which(tmp_path: Path) -> None:
    written(tmp_path, "train:\n  lr: 0.5\n  batch: 4\n", "base.yaml")
    child = written(tmp_path, "extends: base.yaml\ntrain:\n  batch: 8\n", "child.yaml")
    sourced = load_sourced(child, changes=["train.epochs=7"])
    train = sourced.recipe.train
    assert (train.lr, train.batch, train.epochs) == (0.5, 8, 7)
    assert sourced.origin("train.lr") == f"{tmp_path}/base.yaml:2"
    assert sourced.origin("train.batch") == f"{child}:3"
    assert sourced.origin("train.epochs") == "--set train.epochs"
    assert sourced.origin("train.seed") == "default"


def test_a_circle_of_extends_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "extends: b.yaml\n", "a.yaml")
    written(tmp_path, "extends: a.yaml\n", "b.yaml")
    with pytest.raises(RecipeError, match="extends itself"):
        load(tmp_path / "a.yaml")


def test_python_recipes_derive_from_yaml(tmp_path: Path) -> None:
    base = written(tmp_path, "train: {lr: 0.5}\n", "base.yaml")
    code = (
        "from detkit.recipe.load import load\n"
        f"recipe = load({str(base)!r}).derive({{'train.batch': 2 * 16, 'model': {{'size': 's'}}}})\n"
    )
    recipe = load(written(tmp_path, code, "r.py"))
    assert (recipe.train.lr, recipe.train.batch, recipe.model.size) == (0.5, 32, "s")


def test_set_reads_lists_and_names_bad_ones(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    recipe = load_recipe(path, changes=["data.train=[train, val]", "data.augment.mosaic=0", "train.channels_last=false"])
    assert recipe.data.train == ("train", "val") and recipe.data.augment.mosaic == 0 and not recipe.train.channels_last
    for bad, message in (("train.lr", "not of the form"), ("train.lrr=1", r"did you mean train\.lr\?")):
        with pytest.raises(RecipeError, match=message):
            load_recipe(path, changes=[bad])


def test_a_missing_recipe_lists_those_that_are_there(tmp_path: Path) -> None:
    written(tmp_path, "", "mine.yaml")
    with pytest.raises(UserError, match="there is no recipe") as caught:
        load(tmp_path / "megdet.yaml")
    assert "mine.yaml" in caught.value.hint


def test_recipes_are_frozen_and_derive_leaves_the_original_alone() -> None:
    recipe = Recipe()
    derived = recipe.derive({"train.lr": 0.25})
    assert (recipe.train.lr, derived.train.lr) == (1e-3, 0.25)
    with pytest.raises(ValueError, match="frozen"):
        recipe.train.lr = 1  # type: ignore[misc]


def test_setting_names_reach_every_leaf() -> None:
    names = setting_names(Recipe)
    assert "data.augment.mosaic" in names and "compile.max_ap_drop" in names
    assert changed(Recipe(), ["compile.max_ap_drop=0.5"]).compile.max_ap_drop == 0.5
