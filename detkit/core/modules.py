"""Optional dependencies: which are missing, and the sentence that says how to get them."""

import importlib.util
from collections.abc import Iterable

from detkit.core.errors import UserError


def missing_modules(names: Iterable[str]) -> list[str]:
    """Those of the named top-level modules that are not installed, found without importing them."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def require_modules(names: Iterable[str], purpose: str, *, hint: str) -> None:
    """Raises UserError naming the modules that `purpose` needs and this machine lacks."""
    if missing := missing_modules(names):
        raise UserError(f"{purpose} needs {', '.join(missing)}, not installed here", hint=hint)
