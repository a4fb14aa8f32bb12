"""Modules that a recipe names: those of a package of bertkit, and your own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from bertkit.errors import RecipeError, closest


def module_names(package: str) -> list[str]:
    """List the names of the modules of a package of bertkit."""
    folder = Path(importlib.import_module(package).__path__[0])
    return sorted(file.stem for file in folder.glob("[a-z]*.py"))


def load_module(role: str, name: str, package: str, required: Sequence[str], page: str) -> ModuleType:
    """Load a module of a package of bertkit, or one of your own.

    Args:
        role: what such a module is called in messages, such as "task family".
        name: of the package's module, or the importable name of your own, with a dot.
        package: the package of bertkit.
        required: functions and constants that your own module must have.
        page: the page of the docs on writing such a module.

    Raises:
        RecipeError: no such module, or one that lacks something required.
    """
    names = module_names(package)
    if name in names:
        return importlib.import_module(f"{package}.{name}")
    try:
        exists = "." in name and importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        exists = False
    if not exists:
        remedy = closest(name, names)
        if "." in name:
            remedy += "; a module of your own is named package.module and must be importable"
        raise RecipeError(f"no {role} is called {name!r}", remedy)
    module = importlib.import_module(name)
    missing = [attribute for attribute in required if not hasattr(module, attribute)]
    if missing:
        raise RecipeError(f"the {role} {name} lacks {', '.join(missing)}", f"see {page}")
    return module
