"""Evaluated rows: which are compared by name, by number or not at all, and which mistakes come first."""

from __future__ import annotations

from bertkit.reports.examples import Example, find_labeled, find_mistakes, find_numeric, is_finite


def mistakes_of(rows, labels):
    return find_mistakes(rows, find_labeled(rows, labels), find_numeric(rows))


def example(gold, predicted, **more) -> Example:
    return Example("0", [("text", "x")], gold, predicted, **more)


def test_rows_are_compared_by_name_only_if_all_names_are_labels():
    one, several = example("a", "b"), example(["a"], ["a", "b"])
    others = [example("a", "c"), example(["a", "a"], ["b"]), example(1.0, 2.0), example("a", "b", correct=True)]
    assert find_labeled([one, several, *others], ["a", "b"]) == [(one, {"a"}, {"b"}), (several, {"a"}, {"a", "b"})]


def test_rows_are_compared_by_number_only_if_both_are_finite():
    rows = [example(1.0, 2.0), example(1.0, float("nan")), example("a", "b")]
    assert find_numeric(rows) == [(rows[0], 1.0, 2.0)]
    assert not is_finite(1, None) and not is_finite("1") and is_finite(1, 2.5)


def test_rows_that_cannot_be_compared_have_no_mistakes():
    assert mistakes_of([example("Ada", "Ada Lovelace")], ["a", "b"]) is None
    assert mistakes_of([], ["a", "b"]) is None


def test_the_family_decides_what_is_right():
    rows = [example("Ada", "Ada.", correct=True), example("Ada", "Bob", correct=False, confidence=0.75)]
    assert mistakes_of(rows, []) == [(rows[1], "confidence 0.750")]


def test_the_worst_decision_of_several_labels_counts():
    missed = example(["a", "b"], ["a"], probabilities={"a": 0.9, "b": 0.05, "c": 0.2})
    added = example(["a"], ["a", "c"], probabilities={"a": 0.9, "b": 0.05, "c": 0.6})
    mistakes = mistakes_of([added, missed], ["a", "b", "c"])
    assert mistakes == [(missed, "confidence 0.950"), (added, "confidence 0.600")]


def test_without_probabilities_mistakes_have_no_note():
    rows = [example("a", "b") for _ in range(15)]
    assert mistakes_of(rows, ["a", "b"]) == [(row, "") for row in rows]
