"""Strict YAML: values as a recipe means them, the lines of keys, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import RecipeError
from bertkit.recipe import read_yaml, write_yaml
from bertkit.recipe.yaml import read_value

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)


@given(st.dictionaries(st.text("abc_", min_size=1), plain | st.lists(plain, max_size=3), min_size=1, max_size=4))
def test_what_is_written_is_read_back(values):
    assert read_yaml(write_yaml(values), "r.yaml")[0] == values


def test_what_is_written_to_a_file_is_what_is_returned(tmp_path):
    text = write_yaml({"about": "é", "data": {"limit": 3}}, tmp_path / "r.yaml")
    assert (tmp_path / "r.yaml").read_text(encoding="utf-8") == text
    assert read_yaml(text, "r.yaml")[0] == {"about": "é", "data": {"limit": 3}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("no", "no"), ("on", "on"), ("1e-5", 1e-5), ("0x10", "0x10"), ("1_000", "1_000"), ("~", None), ("|", "|")],
)
def test_words_are_text_and_numbers_are_numbers(text, value):
    assert read_value(text) == value


def test_every_key_has_its_line():
    _, lines = read_yaml("a: 1\nb:\n  c: [x,\n      y]\n", "r.yaml")
    assert lines == {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", "0"): 3, ("b", "c", "1"): 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the recipe is empty"),
        ("- a\n", "a recipe is a list of `key: value` lines"),
        ("a: 1\na: 2\n", "the key 'a' occurs twice (r.yaml:2) - it is in line 1 already"),
        ("a: &x 1\nb: *x\n", "anchors and aliases are not supported (r.yaml:1)"),
        ("a: !!int '1'\n", "the tag tag:yaml.org,2002:int is not supported (r.yaml:1)"),
        ("a:\n\tb: 1\n", "a tab where YAML needs spaces (r.yaml:2) - indent with spaces"),
        ("a: [1\n", "not YAML: "),
        ('a: 1\n"\\ud800": 1\n', "half a character (a lone surrogate), which is not text (r.yaml:2)"),
        ("a: 1\n" * 50_000, "a file of 250,000 characters (r.yaml) - at most 200,000 are read"),
    ],
)
def test_anything_but_plain_values_is_refused(text, message):
    with pytest.raises(RecipeError) as raised:
        read_yaml(text, "r.yaml")
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(("text", "value"), [("010", 10), ("089", 89), ("*", "*"), ("#text", "#text"), ("[[a", "[[a")])
def test_a_value_is_never_octal_and_what_is_no_yaml_is_text(text, value):
    assert read_value(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!int x", "the tag tag:yaml.org,2002:int is not supported"),
        ("!!timestamp x", "the tag tag:yaml.org,2002:timestamp is not supported"),
        ("&a x", "anchors and aliases are not supported"),
        ("*a", "anchors and aliases are not supported"),
        ("{a: 1, a: 2}", "the key 'a' occurs twice"),
        ("[" * 5000 + "]" * 5000, "lists or mappings nest too deep"),
        ("9" * 5000, "a number of 5,000 digits"),
    ],
)
def test_values_have_no_more_of_yaml_than_recipes(text, message):
    with pytest.raises(RecipeError) as raised:
        read_value(text)
    assert str(raised.value).startswith(message)


@given(st.text() | st.text("[]{}:,&*!#|>-? 0a'\"", max_size=40))
def test_any_text_is_a_value_or_is_refused(text):
    for read in (read_value, lambda text: read_yaml(text, "r.yaml")):
        try:
            read(text)
        except RecipeError as error:
            assert "\n" not in str(error)
