"""Rows that are held out: the same ones in any order and of any limit, and an even share of each label."""

from __future__ import annotations

import logging
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.hold_out import hold_out
from bertkit.data.rows import Split
from bertkit.data.sources import is_validation, read_splits
from bertkit.errors import DataError
from bertkit.recipe import load_recipe
from bertkit.tasks import Columns
from tests.conftest import write_csv


def split_of(rows: list[dict]) -> Split:
    return Split("all", "rows.csv", rows, list(range(2, len(rows) + 2)))


def draw(rows: list[dict], share: float = 0.1, *, named: bool = True) -> tuple[list[dict], list[dict]]:
    both = hold_out(split_of(rows), share, "label", named=named)
    assert both["train"].is_held_out and both["validation"].is_held_out
    return both["train"].rows, both["validation"].rows


def texts(rows: list[dict]) -> set[str]:
    return {row["text"] for row in rows}


def rows_of(**counts: int) -> list[dict]:
    return [{"text": f"{label} {number}", "label": label} for label, count in counts.items() for number in range(count)]


def test_each_label_gives_up_its_share():
    train, validation = draw(rows_of(common=800, rare=150, scarce=50), 0.1)
    assert Counter(row["label"] for row in validation) == {"common": 80, "rare": 15, "scarce": 5}
    assert len(train) == 900


def test_many_rare_labels_give_up_a_row_by_turns():
    _, validation = draw(rows_of(**{f"label{number}": 4 for number in range(100)}), 0.1)
    assert len(validation) == 40
    assert max(Counter(row["label"] for row in validation).values()) == 1


def test_order_seed_and_id_change_nothing():
    rows = rows_of(a=60, b=40)
    _, validation = draw(rows)
    random.Random(3).shuffle(rows)
    _, shuffled = draw([{**row, "id": number} for number, row in enumerate(rows)])
    assert texts(shuffled) == texts(validation)


def test_texts_that_occur_twice_stay_together():
    rows = rows_of(a=40, b=40)
    rows += [{**row, "label": "b"} for row in rows[:20]] + rows[30:50]
    train, validation = draw(rows, 0.2)
    assert not texts(train) & texts(validation)
    assert len(train) + len(validation) == len(rows)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcd")), min_size=2, max_size=60),
    st.floats(0.01, 0.5),
    st.floats(0.5, 0.99),
)
def test_a_larger_share_holds_out_the_same_rows_and_more(pairs, small, large):
    rows = [{"text": str(text), "label": label} for text, label in pairs]
    try:
        few, many = draw(rows, small), draw(rows, large)
    except DataError:
        return
    assert texts(few[1]) <= texts(many[1])
    for train, validation in (few, many):
        assert train and validation and not texts(train) & texts(validation)
        assert {row["label"] for row in validation} <= {row["label"] for row in train}


def test_a_label_never_leaves_training(caplog):
    rows = [*rows_of(common=4, single=1), {"text": "two", "label": "single"}]
    with caplog.at_level(logging.INFO, "bertkit"):
        train, _ = draw(rows, 0.9)
    assert {"common", "single"} == {row["label"] for row in train}
    assert "fewer rows of common, single are held out: a label never leaves training" in caplog.messages


def test_rows_with_several_labels_are_drawn_by_their_rarest():
    rows = [{"text": f"{n}", "label": ["O", "B-PER"] if n % 10 == 0 else ["O"]} for n in range(200)]
    _, validation = draw(rows, 0.1)
    assert Counter(len(row["label"]) for row in validation) == {1: 18, 2: 2}


def test_numbers_are_no_labels():
    train, validation = draw([{"text": f"{n}", "label": n / 7} for n in range(30)], 0.1, named=False)
    assert (len(train), len(validation)) == (27, 3)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (rows_of(a=1), "one row cannot be split"),
        (rows_of(a=1, b=1), "no row can be held out: each text is the only one of its label"),
        (rows_of(a=1) * 9, "one text only"),
    ],
)
def test_what_cannot_be_split(rows, what):
    with pytest.raises(DataError, match=what):
        draw(rows)


@pytest.mark.parametrize("limit", [7, 30, None])
def test_a_limit_takes_rows_of_each_side_and_moves_none(tmp_path, limit):
    file = write_csv(tmp_path / "all.csv", rows_of(a=50, b=50))
    columns = Columns(given=("text",), gold="label")

    def read(limit):
        changes = {"data.source": str(file), "data.limit": limit, "data.validation_share": 0.2}
        recipe = load_recipe("classify", changes)
        return read_splits(recipe, columns, dict, lambda name: name == "train" or is_validation(name), named=True)

    whole, limited = read(None), read(limit)
    assert {name: len(split.rows) for name, split in whole.items()} == {"train": 80, "validation": 20}
    for name, split in limited.items():
        assert split.rows == whole[name].rows[:limit] and split.lines == whole[name].lines[:limit]
