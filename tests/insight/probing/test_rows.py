"""Training and held-out rows share no text."""

from __future__ import annotations

import pytest

from bertkit.data.rows import Split
from bertkit.errors import DataError
from bertkit.insight.probing.rows import choose_rows


def split(name, texts):
    return Split(name, f"{name}.csv", [{"text": text, "label": "a"} for text in texts], list(range(len(texts))))


def read(row):
    return {"text": row["text"]}


def test_rows_are_drawn_by_content_and_kept_apart():
    splits = {"train": split("train", [f"t{number}" for number in range(40)]), "validation": split("validation", [])}
    splits["validation"] = split("validation", ["t3", "v1", "v2", "t5"])
    train, held_out, notes = choose_rows(splits, read, 100)
    assert {row["text"] for row in train} == {f"t{number}" for number in range(40)} - {"t3", "t5"}
    assert [row["text"] for row in held_out] == ["t3", "v1", "v2", "t5"]
    assert notes == ["training rows whose text is held out too, left out: 2"]
    few, half, _ = choose_rows(splits, read, 4)
    assert len(few) == 4 and len(half) == 2
    backwards = {name: split(name, [row["text"] for row in one.rows][::-1]) for name, one in splits.items()}
    assert {row["text"] for row in choose_rows(backwards, read, 4)[0]} == {row["text"] for row in few}


def test_both_splits_are_needed():
    with pytest.raises(DataError, match="there is train"):
        choose_rows({"train": split("train", ["a"])}, read, 4)
