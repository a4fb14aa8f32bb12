"""Tasks that are made from rows."""

from __future__ import annotations

import random

import pytest

from bertkit.errors import DataError
from bertkit.insight.probing.built_in import BUILT_IN, read_built_in_task
from bertkit.recipe import load_recipe
from tests.conftest import write_jsonl

WORDS = [f"word{number}" for number in "abc"] + [chr(97 + number) * 3 for number in range(26)]


@pytest.fixture
def make(tmp_path):
    """Make a built-in task of 200 rows with random words, of which the first half are a chain."""

    def make_task(name, limit=1000, **changes):
        draws = random.Random(0)
        rows = []
        for _ in range(200):
            words = [draws.choice(WORDS) for _ in range(draws.randint(1, 12))]
            heads = [0, *range(1, len(words))]
            rows.append({"tokens": words, "head": heads, "deprel": ["root"] + ["dep"] * (len(words) - 1)})
        rows = [{key: changes.get(key, value) for key, value in row.items()} for row in rows]
        file = write_jsonl(tmp_path / "rows.jsonl", rows)
        return read_built_in_task(name, load_recipe("tag", {"data.source": str(file)}), limit)

    return make_task


def test_lengths_are_in_bins_of_training_rows(make):
    task = make("length")
    for items in (task.train, task.test):
        for row, label in zip(items.rows, items.labels, strict=True):
            first, _, last = label.partition(" to ")
            assert int(first) <= len(row["text"].split()) <= int(last or first)
    assert 4 <= len(set(task.train.labels)) <= 6
    assert len(task.train) + len(task.test) == 200 or task.notes


def test_one_of_two_texts_has_two_neighbors_swapped(make):
    task = make("shift")
    given = {row["text"] for row in make("length").train.rows}
    labels = task.train.labels
    assert abs(labels.count("swapped") - labels.count("as it is")) <= 1
    for row, label in zip(task.train.rows, labels, strict=True):
        assert (row["text"] in given) == (label == "as it is")


def test_texts_have_exactly_one_of_the_words_to_find(make, monkeypatch):
    from bertkit.insight.probing import built_in

    monkeypatch.setattr(built_in, "_FREQUENT_WORDS", 5)
    task = make("content")
    chosen = set(task.train.labels)
    assert len(chosen) > 5
    for row, label in zip(task.train.rows, task.train.labels, strict=True):
        assert set(row["text"].split()) & chosen == {label}
    monkeypatch.setattr(built_in, "_LEAST_ROWS", 1000)
    with pytest.raises(DataError, match="fewer than two words"):
        make("content")


def test_depths_stand_beside_lengths(make):
    task = make("depth")
    assert task.group_name == "length" and task.train.groups == task.train.labels  # each tree is a chain


def test_arcs_and_relations_are_pairs_of_words(make):
    assert make("arcs").train.combination == "edge"
    with pytest.raises(DataError, match="one label, dep"):
        make("relations").check()


def test_what_rows_lack_is_named(make):
    with pytest.raises(DataError, match="no column 'feats'; there are"):
        make("tense")
    with pytest.raises(DataError, match=r"heads that go in a circle|words but 2 values"):
        make("arcs", head=[2, 1])
    with pytest.raises(DataError, match="is not a list"):
        make("length", tokens=None)


def test_a_limit_holds_for_training_and_half_of_it_for_held_out_rows(make):
    task = make("length", limit=30)
    assert len(task.train) == 30 and len(task.test) == 15


def test_every_task_asks_a_question():
    assert all(task.about.rstrip(")").endswith(("?", "distances")) for task in BUILT_IN.values())
