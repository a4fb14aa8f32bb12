"""A packaged model reads rows with the columns of the data or canonical ones, and says which row is wrong."""

from __future__ import annotations

import re

import pytest

from bertkit.data.columns import Columns
from bertkit.errors import DataError, ModelError
from bertkit.recipe import load_recipe
from bertkit.runtime.packaged_model import PackagedModel, PackagedSettings, canonical_row

PAIR = Columns(given=("text",), gold="label", optional=("text_pair",))
TAGS = Columns(given=("tokens",), gold="tags", lists=("tokens",), text_instead={"tokens": "text"})
CHOICES = Columns(given=("context", "choices"), gold="label", lists=("choices",))


def test_columns_have_the_names_of_the_data_or_canonical_ones():
    mapped = {"text": "sentence", "label": "stars"}
    assert canonical_row({"sentence": "a", "text": "b", "stars": 1}, PAIR, mapped) == {"text": "a"}
    assert canonical_row({"text": "b", "id": 7}, PAIR, mapped) == {"text": "b", "id": 7}
    assert canonical_row("a", PAIR, mapped) == {"text": "a"}
    both = {"text": "one", "text_pair": "two"}
    assert canonical_row({"one": "a", "two": "b", "rest": 1}, PAIR, both) == {"text": "a", "text_pair": "b"}
    assert canonical_row({"ctx": "a", "c0": "b", "c1": "c"}, CHOICES, {"context": "ctx", "choices": ["c0", "c1"]}) == {
        "context": "a",
        "choices": ["b", "c"],
    }


def test_plain_text_may_replace_words():
    assert canonical_row("a b", TAGS, {}) == {"text": "a b"}
    assert canonical_row({"text": "a b"}, TAGS, {"tokens": "words"}) == {"text": "a b"}
    assert canonical_row({"words": ["a"], "text": "b"}, TAGS, {"tokens": "words"}) == {"tokens": ["a"]}


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"txt": "a", "n": 1}, PAIR, "no column 'text'; there are: 'txt', 'n' - name it so, or add it"),
        ({}, PAIR, "no column 'text'; there are: none"),
        ("a", CHOICES, "a text alone - give context and choices, in a dictionary or a line of JSON"),
        (5, PAIR, "5 is no row - give a text, or a dictionary of columns"),
        (["a"], PAIR, "['a'] is no row"),
    ],
    ids=str,
)
def test_a_wrong_row_is_described(row, columns, message):
    with pytest.raises(DataError, match=re.escape(message)):
        canonical_row(row, columns, {})


def test_a_second_text_that_the_model_was_trained_without_is_refused():
    row = {"text": "a", "text_pair": "b"}
    with pytest.raises(DataError, match="the model was trained without text_pair"):
        canonical_row(row, PAIR, {}, ["text_pair"])
    assert canonical_row(row, PAIR, {"text_pair": "text_pair"}, ["text_pair"]) == row


def test_settings_change_as_the_recipe_does():
    recipe = load_recipe("similarity")
    training, whole = recipe.training.model_dump(), recipe.model_dump()
    settings = PackagedSettings(**{**whole, "training": PackagedSettings(**training)})
    changed = settings.changed("training", max_length=3).model_copy(update={"options": {}})
    expected = recipe.changed("training", max_length=3).model_copy(update={"options": {}})
    assert vars(changed.training) == expected.training.model_dump()
    assert {**vars(changed), "training": None} == {**expected.model_dump(), "training": None}
    assert settings.training.max_length == recipe.training.max_length


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match="the manifest of the export is damaged"):
        PackagedModel(tmp_path)
