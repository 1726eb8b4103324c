"""A strict YAML reader that remembers the line of every setting."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from detkit.core.errors import RecipeError

# YAML 1.1 reads 1e-4 as text and on/yes as booleans; people mean a float and a word.
FLOAT = re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
INTEGER = re.compile(r"^[-+]?\d+$")
BOOLEAN = re.compile(r"^(true|false)$")
NULL = re.compile(r"^(null|~|)$")


class StrictLoader(yaml.SafeLoader):
    """SafeLoader with JSON-like scalars: numbers, true/false, null; everything else is text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


def integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Decimal only: YAML 1.1 would read 010 as eight."""
    return int(loader.construct_scalar(node))


StrictLoader.add_implicit_resolver("tag:yaml.org,2002:null", NULL, ["n", "~", ""])
StrictLoader.add_implicit_resolver("tag:yaml.org,2002:bool", BOOLEAN, list("tf"))
StrictLoader.add_implicit_resolver("tag:yaml.org,2002:int", INTEGER, list("-+0123456789"))
StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
StrictLoader.add_constructor("tag:yaml.org,2002:int", integer)


@dataclass(frozen=True)
class Document:
    """Content of a YAML file and the line of every setting by dotted name, `file:line`."""

    content: dict[str, Any]
    origins: dict[str, str]


def read_yaml(path: Path) -> Document:
    """Parse a file. Raises RecipeError with file:line for syntax errors, duplicate keys and a top that is no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}") from error
    try:
        loader = StrictLoader(text)
        node = loader.get_single_node()
        if node is None:
            return Document({}, {})
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(f"{path}:1: a recipe is a mapping of settings, this is a {type(node).__name__}")
        origins: dict[str, str] = {}
        walk(node, path, "", origins)
        return Document(loader.construct_document(node), origins)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise RecipeError(f"{path}{line}: not valid YAML: {problem}") from error


def walk(node: yaml.MappingNode, path: Path, prefix: str, origins: dict[str, str]) -> None:
    """Record the line of every key; refuse keys that are not text or come twice."""
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise RecipeError(f"{path}:{line}: a setting's name must be text")
        if key.value in seen:
            raise RecipeError(f"{path}:{line}: {prefix}{key.value} is set twice, first on line {seen[key.value]}", hint="keep one")
        seen[key.value] = line
        origins[f"{prefix}{key.value}"] = f"{path}:{line}"
        if isinstance(value, yaml.MappingNode):
            walk(value, path, f"{prefix}{key.value}.", origins)
