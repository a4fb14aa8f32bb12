"""What seeds draw: rows stay whole, and control labels belong to words."""

from __future__ import annotations

import numpy as np

from bertkit.insight.probing.draws import draw_control, draw_items, draw_test_items, most_frequent
from tests.insight.probing.made_up import make_items


def test_rows_are_whole_and_apart():
    items = make_items(["a", "b"] * 100, per_row=4)
    draw = draw_items(items, 10_000, seed=1)
    fitting, tuning = (set(items.owners[numbers].tolist()) for numbers in (draw.fitting, draw.tuning))
    assert not fitting & tuning and len(fitting) == 45 and len(tuning) == 5
    assert len(draw.fitting) == 180
    # in random order, but the items of a row behind one another
    owners = items.owners[draw.fitting]
    assert len(np.flatnonzero(np.diff(owners))) == 44 and (np.diff(owners) < 0).any()
    np.testing.assert_array_equal(draw.fitting, draw_items(items, 10_000, seed=1).fitting)
    assert draw.fitting.tolist() != draw_items(items, 10_000, seed=2).fitting.tolist()
    assert len(draw_items(items, 30, seed=1).fitting) == 30


def test_items_to_score_are_whole_rows():
    items = make_items(["a", "b"] * 100, per_row=4)
    assert len(draw_test_items(items, 200)) == 200
    chosen = draw_test_items(items, 50)
    assert len(chosen) == 48 and len(set(items.owners[chosen].tolist())) == 12
    assert len(draw_test_items(items, 1)) == 4


def test_a_type_has_one_control_label_in_training_and_in_scoring():
    labels = np.array([0, 1, 2] * 50)
    groups = [f"w{number % 40}" for number in range(150)]
    test_groups = ["w1", "w2", "w1", "new"]
    drawn, gold = draw_control(labels, groups, labels[:4], test_groups, "types", 1)
    by_type = {}
    for group, label in zip([*groups, *test_groups], [*drawn, *gold], strict=True):
        assert by_type.setdefault(group, label) == label
    assert len(set(by_type.values())) == 3
    other, _ = draw_control(labels, groups, labels[:4], test_groups, "types", 2)
    assert other.tolist() != drawn.tolist()


def test_labels_are_shuffled_within_groups():
    labels = np.array([0] * 20 + [1] * 20 + [2] * 20)
    groups = ["a"] * 30 + ["b"] * 30
    shuffled, gold = draw_control(labels, groups, labels[:3], ["a", "a", "b"], "shuffled", 1)
    assert gold.tolist() == [0, 0, 0] and sorted(shuffled[:30]) == sorted(labels[:30])
    assert shuffled.tolist() != labels.tolist()
    every, _ = draw_control(labels, [], labels[:3], [], "shuffled", 1)
    assert sorted(every) == sorted(labels) and 2 in every[:30]


def test_the_most_frequent_label_of_a_word_or_of_all():
    majority, of_words = most_frequent(np.array([0, 0, 1, 1, 0]), ["a", "a", "b", "b", "b"], ["b", "a", "new"])
    assert majority == 0 and of_words.tolist() == [1, 0, 0]
