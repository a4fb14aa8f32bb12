"""Rows drawn label by label: as many of each, by content and seed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bertkit.data.rows import Split
from bertkit.data.sampling import draw_per_label, draw_rows, oversample
from bertkit.errors import DataError

ROWS = [{"text": f"row {number}", "label": "ab"[number % 3 == 0]} for number in range(60)]


def split_of(rows):
    return Split("train", "rows.csv", rows, list(range(2, len(rows) + 2)))


def draw(rows, count, seed=1):
    return draw_per_label(split_of(rows), "label", ["a", "b"], count, seed)


def texts(split: Split) -> set[str]:
    return {row["text"] for row in split.rows}


def test_each_label_has_as_many_rows_with_their_lines():
    drawn = draw(ROWS, 8)
    assert Counter(row["label"] for row in drawn.rows) == {"a": 8, "b": 8}
    assert [ROWS[line - 2] for line in drawn.lines] == drawn.rows
    assert list(drawn.lines) == sorted(drawn.lines)


def test_order_and_id_change_nothing_and_the_seed_does():
    shuffled = [{**row, "id": number} for number, row in enumerate(ROWS)]
    random.Random(3).shuffle(shuffled)
    assert texts(draw(shuffled, 8)) == texts(draw(ROWS, 8)) != texts(draw(ROWS, 8, seed=2))


def test_a_larger_draw_has_the_rows_of_a_smaller_one():
    assert texts(draw(ROWS, 4)) < texts(draw(ROWS, 16))


def test_too_few_rows_and_several_labels_are_refused():
    with pytest.raises(
        DataError, match=r"data.train_rows_per_label is 21, but the label 'b' has 20 training rows \(rows.csv\)"
    ):
        draw(ROWS, 21)
    with pytest.raises(DataError, match=r"this row has several \(rows.csv:2, column 'label'\)"):
        draw([{"text": "x", "label": ["a", "b"]}], 1)


def test_any_rows_are_drawn_alike_whatever_their_labels():
    shuffled = [{**row, "id": number} for number, row in enumerate(ROWS)]
    random.Random(3).shuffle(shuffled)
    drawn = draw_rows(split_of(ROWS), 20, 1)
    assert len(drawn.rows) == 20 and list(drawn.lines) == sorted(drawn.lines)
    assert texts(drawn) == texts(draw_rows(split_of(shuffled), 20, 1)) != texts(draw_rows(split_of(ROWS), 20, 2))
    assert texts(draw_rows(split_of(ROWS), 5, 1)) < texts(drawn) < texts(draw_rows(split_of(ROWS), 60, 1))
    with pytest.raises(DataError, match=r"data.train_limit is 61, but there are 60 training rows \(rows.csv\)"):
        draw_rows(split_of(ROWS), 61, 1)


def test_rows_of_rare_values_are_repeated_until_each_has_as_many():
    repeated = oversample(split_of(ROWS), "label", 42)
    counts = Counter(row["text"] for row in repeated.rows if row["label"] == "b")
    assert Counter(row["label"] for row in repeated.rows) == {"a": 40, "b": 40}
    assert len(counts) == 20 and set(counts.values()) == {2}
    assert [ROWS[line - 2] for line in repeated.lines] == repeated.rows
    assert len(oversample(split_of(ROWS[:4]), "label", 42).rows) == 4  # two of each
    with pytest.raises(DataError, match=r"this row has a list \(rows.csv:2, column 'label'\)"):
        oversample(split_of([{"text": "x", "label": ["a"]}]), "label", 42)
