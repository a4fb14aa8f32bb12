"""Splits whose words differ."""

from __future__ import annotations

import random

from bertkit.checks.shift import find_shift
from bertkit.data.columns import Columns
from bertkit.data.rows import Split

CLASSES = Columns(given=("text",), gold="label")


def split(letters, name, count=100):
    rng = random.Random(name)
    rows = [{"text": " ".join(rng.choices(letters, k=9)), "label": "x"} for _ in range(count)]
    return Split(name, f"{name}.csv", rows, list(range(1, count + 1)))


def test_splits_of_one_kind_pass():
    splits = {name: split("abcdefgh", name) for name in ("train", "validation")}
    (finding,) = find_shift(splits, CLASSES)
    assert finding.level == "good"
    assert finding.text.endswith("(by chance 0.42 to 0.58)")


def test_splits_with_words_of_their_own_are_shown():
    splits = {"train": split("abcdefgh", "train"), "test": split("abcdefgz", "test"), "small": split("z", "small", 9)}
    (finding,) = find_shift(splits, CLASSES)
    assert finding.level == "warn"
    assert finding.text.startswith("test: its words tell it from train with an AUC of 0.9")
