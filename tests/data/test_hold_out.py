"""Rows that are held out: the same ones in any order and of any limit, and whatever rows join them."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections import Counter
from dataclasses import replace
from math import comb

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertkit.data.rows import Split
from bertkit.data.sampling import hold_out
from bertkit.data.sources import is_validation, read_splits, use_recorded_data
from bertkit.errors import DataError
from bertkit.recipe import DataConfig, load_recipe
from bertkit.tasks import ColumnSpec
from tests.conftest import write_csv


def split_of(rows: list[dict]) -> Split:
    return Split("all", "rows.csv", rows, list(range(2, len(rows) + 2)))


DRAWS = ("by_hash", "by_label")
COLUMNS = ColumnSpec(inputs=("text",), gold="label")
WAYS = pytest.mark.parametrize("way", ["by_hash", "by_label"])


def draw(
    rows: list[dict], share: float = 0.1, way: str = "by_hash", *, named: bool = True
) -> tuple[list[dict], list[dict]]:
    data = DataConfig(validation_fraction=share, hold_out=way)
    both = hold_out(split_of(rows), data, COLUMNS, has_label_names=named)
    assert both["train"].is_held_out and both["validation"].is_held_out
    return both["train"].rows, both["validation"].rows


def texts(rows: list[dict]) -> set[str]:
    return {row["text"] for row in rows}


def rows_of(**counts: int) -> list[dict]:
    return [{"text": f"{label} {number}", "label": label} for label, count in counts.items() for number in range(count)]


def hash_share(text: str) -> float:
    """Return the hash of a text as a number from 0 to 1, written out."""
    content = json.dumps({"text": text}, ensure_ascii=False).encode()
    digest = hashlib.blake2b(content, key=b"bertkit hold-out", digest_size=16).hexdigest()
    return int(digest, 16) / 16**32


def test_rows_are_held_out_whose_hash_is_below_the_share():
    rows = rows_of(a=300, b=300)
    train, validation = draw(rows, 0.2)
    assert texts(validation) == {row["text"] for row in rows if hash_share(row["text"]) < 0.2}
    assert texts(train) == {row["text"] for row in rows if hash_share(row["text"]) >= 0.2}


@given(st.integers(20, 200), st.integers(0, 300), st.floats(0.05, 0.5))
def test_no_row_changes_sides_when_others_join_it(count, more, share):
    """Of two labels that both have a row above the threshold, as any but the smallest files have."""
    rows = [{"text": f"{n}", "label": "ab"[n % 2]} for n in range(count + more)]
    below = [hash_share(row["text"]) < share for row in rows[:count]]
    assume(any(below) and not all(below[::2]) and not all(below[1::2]))
    before, after = draw(rows[:count], share), draw([*reversed(rows[count:]), *rows[:count]], share)
    assert texts(before[0]) <= texts(after[0]) and texts(before[1]) <= texts(after[1])


def test_no_held_out_row_is_trained_on_later_though_a_label_had_no_other_row():
    """The row of a label that was alone is trained on; with another it may be held out, but never the other way."""
    rare = [{"text": f"rare {n}", "label": "rare"} for n in range(60)]
    rare.sort(key=lambda row: hash_share(row["text"]))
    rows = rows_of(common=100)
    assert hash_share(rare[0]["text"]) < 0.1 < hash_share(rare[-1]["text"])
    alone, joined = draw([*rows, rare[0]]), draw([*rows, rare[0], rare[-1]])
    assert rare[0] in alone[0] and rare[0] in joined[1]
    assert texts(alone[1]) <= texts(joined[1])


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_small_files_hold_out_at_least_one_row_and_keep_every_label(count):
    for file in range(200):
        rows = [{"text": f"{file} {n}", "label": "ab"[n % 2]} for n in range(count * 2)]
        train, validation = draw(rows)
        assert validation and {row["label"] for row in train} == {"a", "b"}


def test_the_share_of_20_rows_is_as_approximate_as_the_docs_say():
    """0.1 of 20 rows is 2; it is 1 to 5 in 98 of 100 files, by the binomial distribution and by trial."""
    sizes = [len(draw([{"text": f"{file} {n}", "label": n % 2} for n in range(20)])[1]) for file in range(400)]
    below = [sum(comb(20, k) * 0.1**k * 0.9 ** (20 - k) for k in range(most + 1)) for most in (4, 5)]
    assert below[0] < 0.98 < below[1]
    assert sum(1 <= size <= 5 for size in sizes) / 400 == pytest.approx(below[1], abs=0.02)
    assert 1.9 < sum(sizes) / 400 < 2.4  # where no row is below the threshold, one is held out all the same


def test_a_column_that_the_model_does_not_read_moves_no_row():
    rows = rows_of(a=60, b=60)
    columns = replace(COLUMNS, extra=("genre",))
    genres = [{**row, "genre": n % 7} for n, row in enumerate(rows)]
    for way in DRAWS:
        data = DataConfig(hold_out=way)
        plain = hold_out(split_of(rows), data, COLUMNS, has_label_names=True)
        sliced = hold_out(split_of(genres), data, columns, has_label_names=True)
        assert sliced["validation"].lines == plain["validation"].lines


def test_a_run_keeps_the_draw_that_it_began_with():
    recipe = load_recipe("classify")
    assert use_recorded_data(recipe, {}).data.hold_out == "by_hash"
    for way in DRAWS:
        assert use_recorded_data(recipe, {"hold_out": way}).data.hold_out == way
    assert use_recorded_data(load_recipe("classify", {"data.hold_out": "by_label"}), {}).data.hold_out == "by_label"


def test_each_label_gives_up_its_share():
    train, validation = draw(rows_of(common=800, rare=150, scarce=50), 0.1, "by_label")
    assert Counter(row["label"] for row in validation) == {"common": 80, "rare": 15, "scarce": 5}
    assert len(train) == 900


def test_many_rare_labels_give_up_a_row_by_turns():
    _, validation = draw(rows_of(**{f"label{number}": 4 for number in range(100)}), 0.1, "by_label")
    assert len(validation) == 40
    assert max(Counter(row["label"] for row in validation).values()) == 1


@WAYS
def test_order_seed_and_id_change_nothing(way):
    rows = rows_of(a=60, b=40)
    _, validation = draw(rows, 0.1, way)
    random.Random(3).shuffle(rows)
    _, shuffled = draw([{**row, "id": number} for number, row in enumerate(rows)], 0.1, way)
    assert texts(shuffled) == texts(validation)


@WAYS
def test_texts_that_occur_twice_stay_together(way):
    rows = rows_of(a=40, b=40)
    rows += [{**row, "label": "b"} for row in rows[:20]] + rows[30:50]
    train, validation = draw(rows, 0.2, way)
    assert not texts(train) & texts(validation)
    assert len(train) + len(validation) == len(rows)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcd")), min_size=2, max_size=60),
    st.floats(0.01, 0.5),
    st.floats(0.5, 0.99),
    st.sampled_from(DRAWS),
)
def test_a_larger_share_holds_out_the_same_rows_and_more(pairs, small, large, way):
    rows = [{"text": str(text), "label": label} for text, label in pairs]
    try:
        few, many = draw(rows, small, way), draw(rows, large, way)
    except DataError:
        return
    assert texts(few[1]) <= texts(many[1])
    for train, validation in (few, many):
        assert train and validation and not texts(train) & texts(validation)
        assert {row["label"] for row in validation} <= {row["label"] for row in train}


@WAYS
def test_a_label_never_leaves_training(way, caplog):
    rows = [*rows_of(common=4, single=1), {"text": "two", "label": "single"}]
    with caplog.at_level(logging.INFO, "bertkit"):
        train, _ = draw(rows, 0.9999, way)
    assert {"common", "single"} == {row["label"] for row in train}
    assert any("validation rows have the labels common, single" in line for line in caplog.messages)


def test_many_labels_are_all_in_training_which_is_said(caplog):
    with caplog.at_level(logging.INFO, "bertkit"):
        train, _ = draw(rows_of(**{f"l{number:03}": 2 for number in range(400)}), 0.9)
    assert len({row["label"] for row in train}) == 400
    assert any("validation rows have the labels l001," in line for line in caplog.messages)


def test_rows_with_several_labels_are_drawn_by_their_rarest():
    rows = [{"text": f"{n}", "label": ["O", "B-PER"] if n % 10 == 0 else ["O"]} for n in range(200)]
    _, validation = draw(rows, 0.1, "by_label")
    assert Counter(len(row["label"]) for row in validation) == {1: 18, 2: 2}


def test_numbers_are_no_labels():
    train, validation = draw([{"text": f"{n}", "label": n / 7} for n in range(30)], 0.1, "by_label", named=False)
    assert (len(train), len(validation)) == (27, 3)


@WAYS
@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (rows_of(a=1), "a single row cannot be divided"),
        (rows_of(a=1, b=1), "no row can be held out: each text is the only one with its label"),
        (rows_of(a=1) * 9, "all rows have the same text"),
    ],
)
def test_what_cannot_be_split(rows, what, way):
    with pytest.raises(DataError, match=what):
        draw(rows, 0.1, way)


@pytest.mark.parametrize("limit", [7, 30, None])
@WAYS
def test_a_limit_takes_rows_of_each_side_and_moves_none(tmp_path, limit, way):
    file = write_csv(tmp_path / "all.csv", rows_of(a=50, b=50))

    def read(limit):
        changes = {"data.source": str(file), "data.limit": limit, "data.validation_fraction": 0.2, "data.hold_out": way}
        recipe = load_recipe("classify", changes)
        return read_splits(
            recipe, COLUMNS, dict, lambda name: name == "train" or is_validation(name), has_label_names=True
        )

    whole, limited = read(None), read(limit)
    assert sum(len(split.rows) for split in whole.values()) == 100 and len(whole["validation"].rows) > 7
    for name, split in limited.items():
        assert split.rows == whole[name].rows[:limit] and split.lines == whole[name].lines[:limit]
