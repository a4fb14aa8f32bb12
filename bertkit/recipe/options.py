"""The `options` of a recipe: keys that only its task family or its objective defines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import RecipeError, closest
from bertkit.recipe import PretrainRecipe, Recipe


@dataclass(frozen=True)
class Option:
    """A key of a recipe's ``options``: its default, and the values that are allowed."""

    default: Any
    choices: tuple[Any, ...] = ()
    least: float | None = None
    """The smallest number; by default 0, or unbounded where the default is None."""
    most: float = math.inf
    """The largest number."""
    read: Callable[[Any], Any] | None = None
    """Reads a value that is not a single number, word or boolean; raises ValueError with the remedy."""


def read_option(options: Mapping[str, Any], recipe: Recipe | PretrainRecipe, name: str) -> Any:
    """Return a recipe's option, or the default in OPTIONS of its family or objective."""
    return recipe.options.get(name, _as_option(options[name]).default)


def check_options(values: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check a recipe's options: their names, and that values are of the type of their defaults and in range.

    Raises:
        RecipeError: with the closest name, or the values that are allowed.
    """
    check_names("options", values, options)
    for name, value in values.items():
        option = _as_option(options[name])
        if option.read is None:
            _check_option(name, value, option)
            continue
        try:
            option.read(value)
        except ValueError as error:
            raise RecipeError(f"options.{name} is {value!r}", str(error)) from None


def check_names(section: str, values: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> None:
    """Check that the keys of a section are among its names.

    Raises:
        RecipeError: an unknown key; the message suggests the closest name.
    """
    for name in values:
        if name not in names:
            raise RecipeError(f"unknown key '{section}.{name}'", closest(name, names))


def accept(is_right: Callable[[Any], bool], remedy: str) -> Callable[[Any], Any]:
    """Build what reads a value as it is; it raises ValueError with the remedy where the value is not right."""

    def read(value: Any) -> Any:
        if not is_right(value):
            raise ValueError(remedy)
        return value

    return read


def _as_option(value: object) -> Option:
    return value if isinstance(value, Option) else Option(value)


def _check_option(name: str, value: Any, option: Option) -> None:
    """Refuse a value that is not among the choices, or not of the default's type."""
    if option.choices:
        if value not in option.choices:
            raise RecipeError(f"options.{name} is {value!r}", closest(str(value), map(str, option.choices)))
        return
    # A bool is an int to Python: `true` would pass for 1.
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    least = option.least if option.least is not None else -math.inf if option.default is None else 0
    if isinstance(option.default, bool):
        if not isinstance(value, bool):
            raise RecipeError(f"options.{name} is {value!r}", "give true or false")
    elif isinstance(option.default, int) and (not number or value != int(value) or value < least):
        raise RecipeError(f"options.{name} is {value!r}", f"give a whole number of at least {least:g}")
    elif isinstance(option.default, str) and not isinstance(value, str):
        raise RecipeError(f"options.{name} is {value!r}", "give text")
    elif isinstance(option.default, float) and not (number and least <= value <= option.most):
        raise RecipeError(f"options.{name} is {value!r}", f"give a number from {least:g} to {option.most:g}")
    elif option.default is None and value is not None and not (number and least <= value <= option.most):
        raise RecipeError(f"options.{name} is {value!r}", "give a number")
