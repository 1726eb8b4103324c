"""Load recipes: YAML with one `extends`, Python, and `--set` on top, with the origin of every setting."""

import difflib
import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import yaml

from detkit.core.errors import RecipeError, UserError
from detkit.recipe.schema import Recipe, Section, merged, nested
from detkit.recipe.yaml_loader import StrictLoader, read_yaml

DEFAULT = "default"


@dataclass(frozen=True)
class Sourced:
    """A recipe and where each setting that is not a default came from, by dotted name."""

    recipe: Recipe
    origins: dict[str, str]

    def origin(self, name: str) -> str:
        """`file:line`, `--set`, or `default`; an item of a list takes the list's origin, a setting never its section's."""
        if name in self.origins:
            return self.origins[name]
        parent = name.rpartition(".")[0]
        is_section = any(known.startswith(f"{parent}.") for known in setting_names(Recipe))
        return self.origin(parent) if parent and not is_section else DEFAULT


def load(path: str | Path) -> Recipe:
    """The recipe in a YAML or Python file, for Python recipes that derive from others."""
    return load_sourced(path).recipe


def load_recipe(path: str | Path, *, changes: Sequence[str] = ()) -> Recipe:
    """The recipe in a file with `a.b=value` changes on top."""
    return load_sourced(path, changes=changes).recipe


def load_sourced(path: str | Path, *, changes: Sequence[str] = ()) -> Sourced:
    """The recipe with origins. Raises RecipeError listing every error at once: place, value, reason, nearest name."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no recipe {path}", hint=shipped_sentence(path))
    content, origins = read_python(path) if path.suffix == ".py" else read_chain(path, ())
    for name, value in parsed_changes(changes).items():
        content = merged(content, nested({name: value}))
        # What was below a section that is now replaced keeps no origin of its own.
        origins = {k: v for k, v in origins.items() if not k.startswith(f"{name}.")} | {name: f"--set {name}"}
    return validated(content, origins)


def changed(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """`recipe` with `a.b=value` changes. Raises RecipeError as `load_sourced` does."""
    parsed = parsed_changes(changes)
    content = merged(recipe.model_dump(mode="json"), nested(parsed))
    return validated(content, {name: f"--set {name}" for name in parsed}).recipe


def read_chain(path: Path, children: tuple[Path, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """Content of a YAML recipe laid over what it extends."""
    resolved = path.resolve()
    if resolved in children:
        raise RecipeError(f"{path} extends itself through {' -> '.join(str(c) for c in children)}")
    document = read_yaml(path)
    content = dict(document.content)
    if "extends" not in content:
        return content, document.origins
    parent = content.pop("extends")
    where = document.origins["extends"]
    if not isinstance(parent, str):
        raise RecipeError(f"{where}: extends takes the path of one recipe, got {parent!r}")
    parent_path = path.parent / parent
    if not parent_path.is_file():
        raise RecipeError(f"{where}: extends {parent!r}, but there is no {parent_path}")
    base, origins = read_python(parent_path) if parent_path.suffix == ".py" else read_chain(parent_path, (*children, resolved))
    own = {k: v for k, v in document.origins.items() if k != "extends"}
    return merged(base, content), origins | own


def read_python(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Content of a Python recipe: the module's `recipe`, made with `Recipe(...)` or `load(...).derive({...})`."""
    try:
        found = runpy.run_path(str(path)).get("recipe")
    except pydantic.ValidationError as error:
        raise RecipeError(sentences(error, {}, str(path))) from error
    if not isinstance(found, Recipe):
        raise RecipeError(f"{path} must define `recipe`, a detkit.recipe.schema.Recipe; found {type(found).__name__}")
    content = found.model_dump(mode="json", exclude_defaults=True)
    return content, {name: str(path) for name in dotted_names(content)}


def parsed_changes(changes: Sequence[str]) -> dict[str, Any]:
    """`a.b=value` texts as dotted names and values; values are read like YAML."""
    parsed: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise RecipeError(f"--set {change!r} is not of the form section.name=value", hint="--set train.lr=1e-3")
        try:
            parsed[name.strip()] = yaml.load(text, StrictLoader)
        except yaml.YAMLError as error:
            raise RecipeError(f"--set {change!r}: the value is not valid YAML: {error}") from error
    return parsed


def validated(content: dict[str, Any], origins: dict[str, str]) -> Sourced:
    try:
        return Sourced(Recipe.model_validate(content), origins)
    except pydantic.ValidationError as error:
        raise RecipeError(sentences(error, origins, "recipe")) from error


def sentences(error: pydantic.ValidationError, origins: dict[str, str], fallback: str) -> str:
    """One line per error: origin, dotted name, value, reason, nearest known name."""
    lines = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"]) or "recipe"
        known = Sourced(Recipe(), origins).origin(name)
        place = fallback if known == DEFAULT else known
        if item["type"] == "extra_forbidden":
            near = nearest(name)
            lines.append(f"{place}: there is no setting {name}" + (f"; did you mean {near}?" if near else ""))
        else:
            reason = item["msg"].removeprefix("Value error, ")
            value = f" = {item['input']!r}" if not isinstance(item["input"], dict) else ""
            lines.append(f"{place}: {name}{value}: {reason[:1].lower()}{reason[1:]}")
    return "\n".join(lines)


def nearest(name: str) -> str | None:
    """The known dotted name closest to `name`, by its last part first."""
    names = setting_names(Recipe)
    same_leaf = difflib.get_close_matches(name.split(".")[-1], [n.split(".")[-1] for n in names], n=1, cutoff=0.75)
    whole = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if whole:
        return whole[0]
    return next((n for n in names if same_leaf and n.split(".")[-1] == same_leaf[0]), None)


def setting_names(section: type[Section], prefix: str = "") -> list[str]:
    """Dotted names of all settings and sections, in order of the schema."""
    names = []
    for name, field in section.model_fields.items():
        names.append(f"{prefix}{name}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            names += setting_names(field.annotation, f"{prefix}{name}.")
    return names


def dotted_names(content: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the leaves of nested dicts."""
    names = []
    for key, value in content.items():
        names += dotted_names(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return names


def shipped_sentence(path: Path) -> str:
    """What recipes there are beside the missing one."""
    folder = path.parent if path.parent.is_dir() else Path("recipes")
    there = sorted(p.as_posix() for p in [*folder.glob("*.yaml"), *folder.glob("*.py")])
    return f"recipes there: {', '.join(there)}" if there else "detkit train PATH/TO/RECIPE.yaml"


def yaml_from_recipe(recipe: Recipe) -> str:
    """The whole recipe, every default written out, as YAML that `load` reads back to an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
