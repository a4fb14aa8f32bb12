"""Import custom code that recipes name, and optional packages."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bertkit.errors import RecipeError, UnavailableError, did_you_mean, install_command

_CUSTOM: dict[str, str | None] = {}
"""Name of each loaded module or function in messages, such as "the metric mine.f2" -> its file."""

_trusts_folders = False


def trust_folders() -> None:
    """Trust the recipes of downloaded models from now on, so that code that they name is run."""
    global _trusts_folders
    _trusts_folders = True


def trusts_folders() -> bool:
    """Return whether the recipes of downloaded models are trusted."""
    return _trusts_folders


def untrusted_code_error(code: str) -> RecipeError:
    """Return the error for code that the recipe of a downloaded model names."""
    remedy = "add --trust-remote-code if you trust its author; your own recipe file can name the code too"
    return RecipeError(f"the recipe that came with the model names code to run: {code}", remedy)


def import_extra(module: str, message: str, extra: str, instead: str = "", file: object = None) -> ModuleType:
    """Import a module of an optional package, which an extra of bertkit installs.

    Raises:
        UnavailableError: If the package is not installed; the remedy is to install it, or to use `instead`.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        remedy = f"`{install_command(extra)}`" + (f", or {instead}" if instead else "")
        raise UnavailableError(message, remedy, file=file) from None


def load_module(
    role: str, name: str, shipped: Sequence[str], required: Sequence[str], page: str, trusted: bool = True
) -> ModuleType:
    """Load a custom module, which a recipe names instead of one of bertkit's.

    Args:
        role: Kind of module for messages, such as "task family".
        name: Importable name, with a dot.
        shipped: Names of bertkit's modules, for the suggestion in an error.
        required: Functions and constants that the module must have.
        page: Page of the docs on writing such a module.
        trusted: Whether a custom module may be imported that is not imported yet.

    Raises:
        RecipeError: If the module does not exist, is not trusted, cannot be imported, or lacks a required name.
    """
    parts = name.split(".")
    # A module that is imported already has run its code, so it needs no trust.
    if len(parts) > 1 and not trusted and name not in sys.modules:
        raise untrusted_code_error(f"the {role} {name}")
    module = _import_custom(role, name) if len(parts) > 1 and all(map(str.isidentifier, parts)) else None
    if module is None:
        remedy = did_you_mean(name, shipped)
        if "." in name:
            remedy += "; a custom module is named package.module and must be importable"
        raise RecipeError(f"no {role} is called {name!r}", remedy)
    missing = [attribute for attribute in required if not hasattr(module, attribute)]
    if missing:
        raise RecipeError(f"the {role} {name} lacks {', '.join(missing)}", f"see {page}")
    _CUSTOM[f"the {role} {name}"] = module.__file__
    return module


def load_custom(role: str, name: str, trusted: bool = True) -> Any:
    """Load a custom function or class, ``package.module.name``; for the arguments, see `load_module`.

    Raises:
        RecipeError: If it does not exist, is not trusted, or its import fails.
    """
    path, _, attribute = name.rpartition(".")
    if not path or not all(map(str.isidentifier, name.split("."))):
        remedy = "write package.module.name: see docs/training.md#code-of-your-own"
        raise RecipeError(f"{name!r} is not the name of a custom {role}", remedy)
    if not trusted and path not in sys.modules:
        raise untrusted_code_error(f"the {role} {name}")
    module = _import_custom(role, path)
    if module is None:
        remedy = "Python must be able to import package.module; for a file in this folder, set PYTHONPATH=."
        raise RecipeError(f"no module is called {path!r}, which the {role} {name} names", remedy)
    loaded = getattr(module, attribute, None)
    if not callable(loaded):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise RecipeError(f"the module {path} has no {role} {attribute!r}", did_you_mean(attribute, names))
    if module.__file__ and _is_custom(module.__file__):
        _CUSTOM[f"the {role} {name}"] = module.__file__
    return loaded


def _import_custom(role: str, name: str) -> ModuleType | None:
    """Import a custom module, or return None if it does not exist."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A missing package inside the module is an error of its code; only the module itself counts as absent.
        if error.name and (name + ".").startswith(error.name + "."):
            return None
        raise custom_code_error(f"the {role} {name}", error) from error
    except (Exception, SystemExit) as error:
        # Any error is an error of the custom code.
        raise custom_code_error(f"the {role} {name}", error) from error


def custom_code_error(name: str, error: BaseException) -> RecipeError:
    """Return the error for custom code that failed, with the exception and the last line of the code that was run."""
    # This line must be corrected, even if it calls a library that raised the exception.
    lines = [line for line in traceback.extract_tb(error.__traceback__) if _is_custom(line.filename)]
    file, row = (lines[-1].filename, lines[-1].lineno) if lines else (None, None)
    # A file that cannot be parsed never runs, so it is not in the traceback.
    if isinstance(error, SyntaxError) and error.filename:
        file, row = error.filename, error.lineno
    description = traceback.format_exception_only(error)[-1].strip()
    remedy = "correct it; BERTKIT_DEBUG=1 shows the traceback"
    return RecipeError(f"{name} failed: {description}", remedy, file=file, row=row)


def find_custom_error(error: BaseException) -> RecipeError | None:
    """Return the error for an exception in loaded custom code, or None if the exception comes from other code."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = {code.co_filename for code in codes}
    called_names = {part for code in codes for part in code.co_qualname.split(".")}
    custom_names = [name for name, file in _CUSTOM.items() if file in files]
    # If a file defines several custom functions, blame the one that was called.
    failed_name = max(custom_names, key=lambda name: name.rpartition(".")[2] in called_names, default=None)
    return custom_code_error(failed_name, error) if failed_name else None


def custom_modules() -> list[str]:
    """List the loaded custom code by its names in messages, such as "the task family mypackage.stars"."""
    return list(_CUSTOM)


def _is_custom(file: str) -> bool:
    """Return whether a source file is neither part of bertkit, nor of an installed package, nor of Python."""
    bertkit = str(Path(__file__).parent.parent)
    libraries = [f"{folder}/" for folder in (bertkit, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))]
    # Names such as <frozen importlib._bootstrap> and <string> are not files.
    return not file.startswith(("<", *libraries)) or file in _CUSTOM.values()
