"""Modules by name: your own that a recipe names, and packages that may be missing."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bertkit.errors import RecipeError, UnavailableError, closest, pip_install

_OWN: dict[str, str | None] = {}
"""What each loaded module of your own is called in messages -> its file."""

_trusts_folders = False  # whether recipes that came with models may name code to run


def trust_folders() -> None:
    """Let recipes that came with models name code to run, from now on."""
    global _trusts_folders
    _trusts_folders = True


def trusts_folders() -> bool:
    """Tell whether recipes that came with models may name code to run."""
    return _trusts_folders


def refuse_code(what: str) -> RecipeError:
    """Build the error for code that is named by the recipe of a model's folder, of which nobody said who made it."""
    remedy = "if you trust whoever made it, --trust runs it; a recipe of your own, by its file, runs it too"
    return RecipeError(f"the recipe that came with the model names code to run: {what}", remedy)


def import_extra(module: str, what: str, extra: str, instead: str = "", file: object = None) -> ModuleType:
    """Import a module of a package that bertkit works without and that an extra of it installs.

    Raises:
        UnavailableError: it is not installed; says `what` needs it, how to install it, and what to do `instead`.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        remedy = f"`{pip_install(extra)}`" + (f", or {instead}" if instead else "")
        raise UnavailableError(what, remedy, file=file) from None


def load_module(
    role: str, name: str, shipped: Sequence[str], required: Sequence[str], page: str, trusted: bool = True
) -> ModuleType:
    """Load a custom module, which a recipe names instead of one of bertkit's.

    Args:
        role: what such a module is called in messages, such as "task family".
        name: the importable name, with a dot.
        shipped: Names of bertkit's modules, for the suggestion in an error.
        required: functions and constants that the module must have.
        page: the page of the docs on writing such a module.
        trusted: whether a module of your own may be imported that is not imported yet.

    Raises:
        RecipeError: no such module, one that may not be imported or fails when it is, or one that lacks something
            required.
    """
    parts = name.split(".")
    if len(parts) > 1 and not trusted and name not in sys.modules:
        raise refuse_code(f"the {role} {name}")
    module = _import_own(role, name) if len(parts) > 1 and all(map(str.isidentifier, parts)) else None
    if module is None:
        remedy = closest(name, shipped)
        if "." in name:
            remedy += "; a module of your own is named package.module and must be importable"
        raise RecipeError(f"no {role} is called {name!r}", remedy)
    missing = [attribute for attribute in required if not hasattr(module, attribute)]
    if missing:
        raise RecipeError(f"the {role} {name} lacks {', '.join(missing)}", f"see {page}")
    _OWN[f"the {role} {name}"] = module.__file__
    return module


def load_own(role: str, name: str, trusted: bool = True) -> Any:
    """Load a function or class of your own, ``package.module.name``; arguments as for `load_module`.

    Raises:
        RecipeError: it may not be imported, is not there, or fails when it is imported.
    """
    path, _, attribute = name.rpartition(".")
    if not path or not all(map(str.isidentifier, name.split("."))):
        remedy = "write package.module.name: see docs/training.md#code-of-your-own"
        raise RecipeError(f"{name!r} names no {role} of your own", remedy)
    if not trusted and path not in sys.modules:
        raise refuse_code(f"the {role} {name}")
    module = _import_own(role, path)
    if module is None:
        remedy = "write package.module.name; Python must be able to import the module: PYTHONPATH=. if it lies here"
        raise RecipeError(f"no module is called {path!r}, which the {role} {name} names", remedy)
    loaded = getattr(module, attribute, None)
    if not callable(loaded):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise RecipeError(f"the module {path} has no {role} {attribute!r}", closest(attribute, names))
    if module.__file__ and _is_own(module.__file__):
        _OWN[f"the {role} {name}"] = module.__file__
    return loaded


def _import_own(role: str, name: str) -> ModuleType | None:
    """Import a module of your own; None where there is no such module."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name + ".").startswith(error.name + "."):
            return None
        raise own_fault(f"the {role} {name}", error) from error
    except (Exception, SystemExit) as error:  # whatever it raises, it is not bertkit that is wrong
        raise own_fault(f"the {role} {name}", error) from error


def own_fault(what: str, error: BaseException) -> RecipeError:
    """Build the error for code of your own that failed, with what it raised and its last line in the traceback."""
    lines = [line for line in traceback.extract_tb(error.__traceback__) if _is_own(line.filename)]
    file, row = (lines[-1].filename, lines[-1].lineno) if lines else (None, None)
    if isinstance(error, SyntaxError) and error.filename:
        file, row = error.filename, error.lineno
    raised = traceback.format_exception_only(error)[-1].strip()
    remedy = "correct it; BERTKIT_DEBUG=1 shows the traceback"
    return RecipeError(f"{what} failed: {raised}", remedy, file=file, row=row)


def fault_of_own_module(error: BaseException) -> RecipeError | None:
    """Build the error for a loaded module of your own in whose functions an error was raised; None if in none."""
    codes = [called.f_code for called, _ in traceback.walk_tb(error.__traceback__)]
    files, names = (
        {code.co_filename for code in codes},
        {part for code in codes for part in code.co_qualname.split(".")},
    )
    failed = [what for what, file in _OWN.items() if file in files]
    # one file may have several: the one whose function was called
    what = max(failed, key=lambda what: what.rpartition(".")[2] in names, default=None)
    return own_fault(what, error) if what else None


def own_modules() -> list[str]:
    """List the modules of your own that are loaded, as messages call them: `the task family mypackage.stars`."""
    return list(_OWN)


def _is_own(file: str) -> bool:
    """Tell whether a file of code is neither bertkit's, nor an installed package's, nor Python's."""
    bertkit = str(Path(__file__).parent.parent)
    libraries = [f"{folder}/" for folder in (bertkit, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))]
    return not file.startswith(("<", *libraries)) or file in _OWN.values()
