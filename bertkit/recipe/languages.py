"""Languages: ``{language}`` in what a recipe says of its data stands for the value of ``data.language``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, RecipeError, closest
from bertkit.recipe.paths import typed_path

PLACEHOLDER = "{language}"
_KEYS = ("source", "config", "files", "splits")  # of `data`, which may have it


def names_language(data: Mapping[str, Any]) -> bool:
    """Tell whether what a recipe says of its data has ``{language}`` in it."""
    return any(PLACEHOLDER in text for key in _KEYS for text in _texts(data.get(key)))


def fill_language(data: Mapping[str, Any], *, is_change: bool) -> dict[str, Any]:
    """Put ``data.language`` into what a recipe says of its data.

    The recipe of a run has its language and no ``{language}`` any more.

    Args:
        data: the section of the recipe, unchecked.
        is_change: whether the language is an override.

    Raises:
        RecipeError: an override without ``{language}``, or ``{language}`` and no language.
        DataError: a folder has files or folders of other languages only.
    """
    language = data.get("language")
    if not names_language(data):
        if not is_change or language is None:
            return dict(data)
        where = data.get("source") or "the recipe's data"
        what = f"no {PLACEHOLDER} in {where}, so there is nothing to put {language!r} into"
        raise RecipeError(what, f"write e.g. --data 'folder/{PLACEHOLDER}', or data.config: '{PLACEHOLDER}'")
    if language is None:
        what = f"the data has {PLACEHOLDER} in its name, and the recipe no data.language"
        raise RecipeError(what, "--set data.language=en, or another; or `bertkit eval --languages en,de`")
    if not isinstance(language, str):
        return dict(data)  # an error of the record
    _check_folder(str(data.get("source") or ""), language)
    return {**data, **{key: _fill_value(data[key], language) for key in _KEYS if key in data}}


def _texts(value: object) -> list[str]:
    values = value.values() if isinstance(value, Mapping) else [value]
    return [text for text in values if isinstance(text, str)]


def _fill_value(value: Any, language: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill_value(inner, language) for key, inner in value.items()}
    return value.replace(PLACEHOLDER, language) if isinstance(value, str) else value


def _check_folder(source: str, language: str) -> None:
    """Check that a source in a folder is there, if it is there for another language: it is no name of the hub then."""
    path = typed_path(source)
    # The languages that are there are read off the folder, to name the nearest in the error.
    first = next((number for number, name in enumerate(path.parts) if PLACEHOLDER in name), None)
    if first is None or Path(_fill_value(str(path), language)).exists():
        return
    folder = Path(*path.parts[:first])
    pattern = re.escape(path.parts[first]).replace(re.escape(PLACEHOLDER), "(.+)", 1)
    entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    found = [match[1] for match in (re.fullmatch(pattern, name) for name in entries) if match]
    there = [name for name in found if Path(_fill_value(str(path), name)).exists()]
    if there:
        raise DataError(f"no language {language!r} in {source}", closest(language, there))
