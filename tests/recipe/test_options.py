"""Options of a family: defaults, and values of the wrong type or out of range."""

from __future__ import annotations

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import load_recipe
from bertkit.recipe.options import Option, check_options, read_option


def even(value):
    if value % 2:
        raise ValueError("use an even number")
    return value


OPTIONS = {
    "flag": False,
    "count": Option(5, least=2),
    "share": Option(0.5, most=1),
    "word": "|",
    "mode": Option("a", choices=("a", "b")),
    "threshold": None,
    "pair": Option(2, read=even),
}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("flag", [True, False]),
        ("count", [2, 7.0]),
        ("share", [0, 1, 0.25]),
        ("word", ["x"]),
        ("mode", ["a", "b"]),
        ("threshold", [None, -3, 0.5]),
        ("pair", [4]),
    ],
)
def test_values_of_the_right_type_are_accepted(name, values):
    for value in values:
        check_options({name: value}, OPTIONS)
        assert read_option(OPTIONS, load_recipe("cola", {f"options.{name}": value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("flag", 1, "give true or false"),
        ("count", 1, "give a whole number of at least 2"),
        ("count", 2.5, "give a whole number of at least 2"),
        ("count", True, "give a whole number of at least 2"),
        ("share", 1.1, "give a number from 0 to 1"),
        ("share", float("nan"), "give a number from 0 to 1"),
        ("word", 3, "give text"),
        ("mode", "c", "there are: a, b"),
        ("threshold", "low", "give a number"),
        ("pair", 3, "use an even number"),
    ],
)
def test_other_values_are_refused_with_those_allowed(name, value, remedy):
    with pytest.raises(RecipeError) as raised:
        check_options({name: value}, OPTIONS)
    assert str(raised.value) == f"options.{name} is {value!r} - {remedy}"


def test_the_default_stands_where_a_recipe_says_nothing_and_unknown_names_are_refused():
    recipe = load_recipe("cola")
    assert [read_option(OPTIONS, recipe, name) for name in ("count", "word", "threshold")] == [5, "|", None]
    with pytest.raises(RecipeError, match=r"unknown key 'options.counts' - did you mean count\?"):
        check_options({"counts": 3}, OPTIONS)
