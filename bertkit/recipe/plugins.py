"""Modules that are found by name: those of a package of bertkit, and a user's own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import RecipeError, closest


def module_names(package: str) -> list[str]:
    """List the modules of a package of bertkit."""
    folder = Path(importlib.import_module(package).__path__[0])
    return sorted(file.stem for file in folder.glob("[a-z]*.py"))


def load_module(kind: str, name: str, package: str, parts: Sequence[str], page: str) -> Any:
    """Load a module of a package of bertkit, or one of a user's own, which must have all parts.

    Args:
        kind: what such a module is, in words.
        name: of the package's module, or package.module of one's own.
        package: the package of bertkit.
        parts: names the module must have.
        page: tells how such a module is written.

    Raises:
        RecipeError: no such module, or one that lacks a part.
    """
    names = module_names(package)
    if name in names:
        return importlib.import_module(f"{package}.{name}")
    try:
        found = "." in name and importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        where = f"{closest(name, names)}; a module of your own is named package.module and must be importable"
        raise RecipeError(f"no {kind} is called {name!r}", where if "." in name else closest(name, names))
    module = importlib.import_module(name)
    lacking = [part for part in parts if not hasattr(module, part)]
    if lacking:
        raise RecipeError(f"the {kind} {name} lacks {', '.join(lacking)}", f"see {page}")
    return module
