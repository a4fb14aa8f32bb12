"""A text belongs to one split, and each split gets its share."""

from __future__ import annotations

from collections import Counter

from bertkit.data.demo.sets import split_of


def test_three_texts_in_five_are_for_training():
    counts = Counter(split_of(f"text number {number}") for number in range(5000))
    assert set(counts) == {"train", "validation", "test"}
    assert abs(counts["train"] - 3000) < 150
    assert abs(counts["validation"] - counts["test"]) < 150
