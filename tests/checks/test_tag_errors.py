"""Tags that may be wrong, ranked by the worst word of each row."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bertkit.checks import tag_errors
from bertkit.data.columns import Columns
from bertkit.data.demo import demo_rows
from bertkit.data.rows import Split
from bertkit.errors import UnavailableError
from bertkit.recipe import load_recipe
from bertkit.vectors.embedder import Embedder

TAGGED = Columns(given=("tokens",), gold="tags", lists=("tokens", "tags"))


def rank(given, probabilities):
    """Stand in for cleanlab: the words whose tag is not the most probable one, by its probability."""
    found = [
        (of_word[tag], row, word)
        for row, (tags, of_row) in enumerate(zip(given, probabilities, strict=True))
        for word, (tag, of_word) in enumerate(zip(tags, of_row, strict=True))
        if of_word.argmax() != tag
    ]
    return [(row, word) for _, row, word in sorted(found)]


@pytest.fixture
def rows():
    """Rows with names, of which five have a wrong tag, and one word has none."""
    rows = demo_rows(load_recipe("ner"), "train", 200)
    names = load_recipe("ner").labels
    rows = [{**row, "tags": [names[tag] if isinstance(tag, int) else tag for tag in row["tags"]]} for row in rows]
    named = [number for number, row in enumerate(rows) if "B-PER" in row["tags"]][:5]
    for number in named:
        rows[number]["tags"][rows[number]["tags"].index("B-PER")] = "B-LOC"
    rows[named[0]]["tags"][-1] = None
    return rows, set(named)


def test_wrong_tags_are_ranked_first_in_every_split(rows, monkeypatch):
    rows, wrong = rows
    monkeypatch.setattr(tag_errors, "_load_cleanlab", lambda: rank)
    splits = {
        "train": Split("train", "t.jsonl", rows[:100], list(range(100))),
        "validation": Split("validation", "t.jsonl", rows[100:], list(range(100, 200))),
    }
    found = tag_errors.find_tag_errors(splits, TAGGED, Embedder("demo"))
    assert wrong <= {error.row for error in found.ranked[:8]}
    first = found.ranked[0]
    assert (first.label, first.suggested) == ("B-LOC", "B-PER")
    assert first.word in rows[first.row]["tokens"] and first.text == " ".join(rows[first.row]["tokens"])
    assert len({error.row for error in found.ranked}) == len(found.ranked) == found.finding.count
    assert found.count is None


def test_rows_without_two_tags_are_left_out(monkeypatch):
    monkeypatch.setattr(tag_errors, "_load_cleanlab", lambda: rank)
    same = [{"tokens": ["a"], "tags": ["O"]}] * 9
    splits = {"train": Split("train", "t.jsonl", same, list(range(9)))}
    assert tag_errors.find_tag_errors(splits, TAGGED, Embedder("demo")) is None


def test_neighbors_are_those_of_the_row():
    values, row_of = np.arange(1.0, 6.0)[:, None], np.array([0, 0, 1, 1, 1])
    assert tag_errors._shift_values(values, row_of, -1)[:, 0].tolist() == [0, 1, 0, 3, 4]
    assert tag_errors._shift_values(values, row_of, 1)[:, 0].tolist() == [2, 0, 4, 5, 0]


def test_cleanlab_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab.token_classification.filter", None)
    with pytest.raises(UnavailableError, match="cleanlab"):
        tag_errors.find_tag_errors({}, TAGGED, Embedder("demo"))
