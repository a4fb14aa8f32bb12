"""The `options` of a recipe: what only its task family or its objective knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.errors import RecipeError, closest
from bertkit.recipe import PretrainRecipe, Recipe


@dataclass(frozen=True)
class Option:
    """A key of a recipe's ``options``: its default, and the values it may have."""

    default: Any
    choices: tuple[Any, ...] = ()
    least: float | None = None
    """The smallest number; without it zero, or any where the default is None."""
    most: float = math.inf
    """The largest number."""
    read: Callable[[Any], Any] | None = None
    """Gives the value meant by one that is no single number, word or yes; raises ValueError with the remedy."""


def read_option(options: Mapping[str, Any], recipe: Recipe | PretrainRecipe, name: str) -> Any:
    """Give a recipe's option, or the default that OPTIONS of its family or objective has for it."""
    return recipe.options.get(name, _as_option(options[name]).default)


def check_options(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse options that nobody knows, and values of another kind than their defaults.

    Raises:
        RecipeError: with the closest name, or the values that may be given.
    """
    check_names("options", given, known)
    for name, value in given.items():
        option = _as_option(known[name])
        if option.read is None:
            _check_option(name, value, option)
        else:
            _try_to_read(name, value, option.read)


def check_names(section: str, given: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any]) -> None:
    """Refuse a key of a section that is none of the known ones.

    Raises:
        RecipeError: with the closest name.
    """
    for name in given:
        if name not in known:
            raise RecipeError(f"unknown key '{section}.{name}'", closest(name, known))


def _as_option(value: Any) -> Option:
    return value if isinstance(value, Option) else Option(value)


def _try_to_read(name: str, value: Any, read: Callable[[Any], Any]) -> None:
    try:
        read(value)
    except ValueError as error:
        raise RecipeError(f"options.{name} is {value!r}", str(error)) from None


def _check_option(name: str, value: Any, option: Option) -> None:
    """Refuse a value that is none of the choices, or of another kind than the default."""
    if option.choices:
        if value not in option.choices:
            raise RecipeError(f"options.{name} is {value!r}", f"one of {', '.join(map(str, option.choices))}")
        return
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
