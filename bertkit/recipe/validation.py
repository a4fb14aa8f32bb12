"""Turn invalid values of a recipe into errors that name the key, the line or the override, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml

from bertkit.errors import RecipeError, did_you_mean, shorten
from bertkit.recipe.sections import ConfigSection
from bertkit.recipe.yaml import Lines

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}
"""Error type of pydantic -> words for the bound, and the name of the bound."""
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "string_pattern": "`package.module.name`",
    "string": "text",
    "list": "a list, such as [a, b]",
    "dict": "`key: value` pairs",
    "model": "`key: value` pairs",
    "too_short": "a list of at least one",
    "none": "null",
}
"""Start of an error type of pydantic -> values that are allowed."""
_TYPE_PREFIXES = ("literal[", "function-", "dict[", "list[", "int", "float", "bool", "str", "constrained")
"""Prefixes of the types of a union, which pydantic inserts into the path of a wrong value."""


def build_recipe_error(
    errors: Sequence[Any], record: type[ConfigSection], changes: Mapping[str, Any], file: Path, lines: Lines
) -> RecipeError:
    """Turn pydantic's errors into one error, with the first wrong key, its line or override, and the allowed values."""
    first_key = _name_key(errors[0]["loc"])
    first_key_errors = [error for error in errors if _name_key(error["loc"]).startswith(first_key)]
    # The deepest of the errors below one key is the most precise: `data.limit` rather than `data`.
    error = max(first_key_errors, key=lambda error: _name_key(error["loc"]).count("."))
    path = tuple(str(key) for key in error["loc"])
    # A missing key has no line, so the error has the line of the nearest section.
    path_in_file = max((path[:end] for end in range(len(path) + 1) if path[:end] in lines), key=len, default=())
    is_override = any(_overlap(path, tuple(key.split("."))) for key in changes)
    position: dict[str, Any] = {} if is_override else {"row": lines.get(path_in_file), "file": file}
    if error["type"] == "extra_forbidden":
        return RecipeError(f"unknown key {shorten(repr('.'.join(path)))}", _closest_key(record, path), **position)
    if error["type"] == "missing":
        return RecipeError(f"the key {'.'.join(path)!r} is missing", record.EXAMPLE, **position)
    name = _name_key(error["loc"])
    setting = f"{shorten(name)} = {format_value(error['input'])}"
    bounds = "" if error["type"] == "value_error" else _describe_range(record, name)
    if bounds:
        # The message of pydantic names only the violated bound.
        problem = "out of range" if error["type"].startswith(("greater", "less")) else "wrong"
        return RecipeError(f"{setting} is {problem}", f"give {bounds}", **position)
    # A union has one error per type.
    variants = [variant for variant in errors if _name_key(variant["loc"]) == name]
    rules = dict.fromkeys(map(describe_rule, variants))
    message = f"{setting} is wrong: {' or '.join(rules).replace(' or must be ', ' or ')}"
    return RecipeError(message, _closest_choice(str(error["input"]), variants), **position)


def _closest_choice(value: str, variants: Sequence[Any]) -> str:
    """Return a suggestion of the choices that are close to a mistyped value, or an empty text."""
    # `expected` is a text such as "'linear', 'cosine' or 'constant'".
    choices = " ".join(variant["ctx"]["expected"] for variant in variants if variant["type"] == "literal_error")
    remedy = did_you_mean(value, re.findall(r"'([^']+)'", choices))
    return remedy if remedy.startswith("did you mean") else ""


def describe_rule(error: Mapping[str, Any]) -> str:
    """Describe the allowed values without the Python types in pydantic's messages."""
    if error["type"] == "literal_error":
        return f"must be {error['ctx']['expected']}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["loc"][-1:] == ("[key]",):
        return "its keys must be text"
    if error["type"] in _BOUNDS:
        words, bound = _BOUNDS[error["type"]]
        return f"must be {words} {error['ctx'][bound]:,}"
    # `string_pattern` comes before `string` in the table, because it starts with `string` as well.
    types = (f"must be {words}" for prefix, words in _TYPES.items() if error["type"].startswith(prefix))
    return next(types, "not valid")


def format_value(value: object) -> str:
    """Return a value as in a recipe, shortened to 80 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shorten(str(value) if isinstance(value, (int, float)) else repr(value))


def _name_key(path: Sequence[int | str]) -> str:
    """Return a key's dotted name, without the parts that pydantic adds to its path."""
    # For a wrong key of a mapping, pydantic adds the key itself and the marker [key].
    keys = path[:-2] if path[-1:] == ("[key]",) else path
    return ".".join(str(key) for key in keys if not str(key).startswith(_TYPE_PREFIXES))


def _overlap(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Return whether one key path is a prefix of the other, or both are equal."""
    return all(key == other_key for key, other_key in zip(first, second, strict=False))


def _find_section(record: type[ConfigSection], path: tuple[str, ...]) -> tuple[Any, str]:
    """Return the section that a dotted key belongs to, and the last part of the key."""
    from pydantic import BaseModel

    section: Any = record
    for key in path[:-1]:
        field = section.model_fields.get(key)
        # `ConfigSection`, or `ConfigSection | None`
        types = (field.annotation, *get_args(field.annotation)) if field else ()
        subsection = next((cls for cls in types if isinstance(cls, type) and issubclass(cls, BaseModel)), None)
        if subsection is None:
            break
        section = subsection
    return section, path[-1]


def _closest_key(record: type[ConfigSection], path: tuple[str, ...]) -> str:
    section, last = _find_section(record, path)
    key = other_names().get(last)
    if remedy := read_names("hints").get(last) or (key and f"write {key}"):
        return remedy
    # A key without its section, such as `epochs` for `training.epochs`.
    for name in record.model_fields if len(path) == 1 else ():
        subsection, _ = _find_section(record, (name, last))
        if subsection is not record and last in subsection.model_fields:
            return f"write {name}.{last}"
    return did_you_mean(last, section.model_fields)


def _describe_range(record: type[ConfigSection], name: str) -> str:
    """Describe the numbers that a field allows, or return an empty text if the field has no bounds."""
    from pydantic import WrapValidator

    section, last = _find_section(record, tuple(name.split(".")))
    field = section.model_fields.get(last)
    bounds = [
        f"{words} {getattr(bound, attribute):,}"
        for bound in (field.metadata if field else [])
        for words, attribute in _BOUNDS.values()
        if getattr(bound, attribute, None) is not None
    ]
    if not bounds:
        return ""
    kind = "an integer" if field and int in (field.annotation, *get_args(field.annotation)) else "a number"
    # Fields that can be `auto` have a `WrapValidator`; see `_OR_AUTO` in `sections.py`.
    or_auto = ", or auto" if field and any(isinstance(part, WrapValidator) for part in field.metadata) else ""
    return f"{kind} {'of ' if bounds[0].startswith('at') else ''}{' and '.join(bounds)}{or_auto}"


# --- Names in other tools ---


def read_names(table: str) -> dict[str, str]:
    """Read a table of names in other tools: name there -> name in bertkit.

    Args:
        table: Key of `other_names.yaml`: ``training_arguments`` (field of transformers -> key, option or command),
            ``other_tools``, ``options`` (with underscores), ``hints`` (option -> a remedy) or ``commands``.
    """
    return {name: key for key, names in _read_tables()[table].items() for name in names}


def other_names() -> dict[str, str]:
    """Return the names of recipe keys in other tools, regardless of sections: name there -> bertkit's key."""
    keys = read_names("training_arguments")
    return {name: key for name, key in keys.items() if not key.startswith("bertkit ")} | read_names("other_tools")


def other_options() -> dict[str, str]:
    """Return the names of options in other tools: name there, with underscores -> bertkit's option or recipe key."""
    return other_names() | read_names("options")


def same_options() -> set[str]:
    """Return the names of `other_options` that commands accept, because they have the same meaning."""
    return set(_read_tables()["same"])


@cache
def _read_tables() -> dict[str, Any]:
    tables: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("other_names.yaml").read_text(encoding="utf-8"))
    return tables
