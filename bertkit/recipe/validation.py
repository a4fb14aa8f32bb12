"""Errors of a recipe's values: the key, the line or the override, and the remedy."""

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
"""Error of pydantic -> words for the bound, and the name of its value."""
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
"""How the name of an error of pydantic begins -> what the key takes."""
_VARIANTS = ("literal[", "function-", "dict[", "list[", "int", "float", "bool", "str", "constrained")
"""How pydantic names the types of a union, as a part of the path to a wrong value."""


def build_recipe_error(
    errors: Sequence[Any], record: type[ConfigSection], changes: Mapping[str, Any], file: Path, lines: Lines
) -> RecipeError:
    """Turn pydantic's errors into one that names the first wrong key, its line or override, and what is allowed."""
    first = _name_key(errors[0]["loc"])
    first_key_errors = [error for error in errors if _name_key(error["loc"]).startswith(first)]
    # The deepest of the errors below one key is the most precise: `data.limit` rather than `data`.
    error = max(first_key_errors, key=lambda error: _name_key(error["loc"]).count("."))
    path = tuple(str(key) for key in error["loc"])
    # A missing key has no line, so the line of the nearest section is named.
    written = max((path[:end] for end in range(len(path) + 1) if path[:end] in lines), key=len, default=())
    override = next((key for key in changes if _overlap(path, tuple(key.split(".")))), None)
    position: dict[str, Any] = {"row": lines.get(written), "file": file} if override is None else {}
    if error["type"] == "extra_forbidden":
        return RecipeError(f"unknown key {shorten(repr('.'.join(path)))}", _closest_key(record, path), **position)
    if error["type"] == "missing":
        return RecipeError(f"the key {'.'.join(path)!r} is missing", record.EXAMPLE, **position)
    name = _name_key(error["loc"])
    fault = f"{shorten(name)} = {format_value(error['input'])} is"
    bounds = "" if error["type"] == "value_error" else _describe_range(record, name)
    if bounds:
        # The bounds of the record are clearer than the message of pydantic, which names only the violated one.
        out_of_range = error["type"].startswith(("greater", "less"))
        return RecipeError(f"{fault} {'out of range' if out_of_range else 'wrong'}", f"give {bounds}", **position)
    # A union has one error per type.
    variants = [variant for variant in errors if _name_key(variant["loc"]) == name]
    rules = dict.fromkeys(map(describe_rule, variants))
    message = f"{fault} wrong: {' or '.join(rules).replace(' or must be ', ' or ')}"
    return RecipeError(message, _closest_choice(str(error["input"]), variants), **position)


def _closest_choice(value: str, variants: Sequence[Any]) -> str:
    """Suggest the choices that are close to a mistyped value, or return an empty text if none is."""
    choices = [
        name
        for variant in variants
        if variant["type"] == "literal_error"
        for name in re.findall(r"'([^']+)'", variant["ctx"]["expected"])
    ]
    remedy = did_you_mean(value, choices)
    return remedy if remedy.startswith("did you mean") else ""


def describe_rule(error: Mapping[str, Any]) -> str:
    """Describe the values that are allowed; pydantic's messages name Python types."""
    if error["type"] == "literal_error":
        return f"must be {error['ctx']['expected']}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["loc"][-1:] == ("[key]",):
        return "its keys must be text"
    if error["type"] in _BOUNDS:
        words, bound = _BOUNDS[error["type"]]
        return f"must be {words} {error['ctx'][bound]:,}"
    # The longer names come first: string_pattern starts with string as well.
    return next((f"must be {words}" for start, words in _TYPES.items() if error["type"].startswith(start)), "not valid")


def format_value(value: object) -> str:
    """Return a value as a recipe writes it, at most 80 characters of it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return shorten(str(value) if isinstance(value, (int, float)) else repr(value))


def _name_key(path: Sequence[int | str]) -> str:
    """Return a key's dotted name, without what pydantic adds to its path."""
    # For a wrong key of a mapping, pydantic adds the key itself and the marker [key].
    keys = path[:-2] if path[-1:] == ("[key]",) else path
    return ".".join(str(key) for key in keys if not str(key).startswith(_VARIANTS))


def _overlap(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Return whether one key path is a prefix of the other, or both are equal."""
    return all(key == other_key for key, other_key in zip(first, second, strict=False))


def _find_section(record: type[ConfigSection], path: tuple[str, ...]) -> tuple[Any, str]:
    """Return the record that a dotted key belongs to, and the last part of the key."""
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
    return did_you_mean(last, section.model_fields)


def _describe_range(record: type[ConfigSection], name: str) -> str:
    """Describe the numbers that a field allows by the bounds in its record; the text is empty without bounds."""
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
    # Fields that can also be `auto` have a validator that passes it through; see `_OR_AUTO` in `sections.py`.
    or_auto = ", or auto" if field and any(isinstance(part, WrapValidator) for part in field.metadata) else ""
    return f"{kind} {'of ' if bounds[0].startswith('at') else ''}{' and '.join(bounds)}{or_auto}"


# --- Names that other tools use ---


def read_names(table: str) -> dict[str, str]:
    """Read a table of the names that other tools use: name -> what it means here.

    Args:
        table: Key of `other_names.yaml`: ``training_arguments`` (field of transformers -> what decides it here),
            ``other_tools``, ``options`` (spelled with underscores), ``hints`` (option -> a remedy) or ``commands``.
    """
    return {name: key for key, names in _read_tables()[table].items() for name in names}


def other_names() -> dict[str, str]:
    """Read what other tools call a key of a recipe, regardless of its section: name -> bertkit's key."""
    decided = read_names("training_arguments")
    return {name: key for name, key in decided.items() if not key.startswith("bertkit ")} | read_names("other_tools")


def other_options() -> dict[str, str]:
    """Read what other programs call an option: its name, with underscores -> bertkit's option, or its recipe key."""
    return other_names() | read_names("options")


def same_options() -> set[str]:
    """Read which of `other_options` mean the same as bertkit's, so that they can stand for them."""
    return set(_read_tables()["same"])


@cache
def _read_tables() -> dict[str, Any]:
    tables: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("other_names.yaml").read_text(encoding="utf-8"))
    return tables
