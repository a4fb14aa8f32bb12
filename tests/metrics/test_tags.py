"""Entities as spans, held against seqeval and against conlleval's counting written out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2, Entities

from bertkit.metrics import tags as entities
from bertkit.metrics.intervals import find_intervals, ratio_metric, wilson_interval
from bertkit.recipe import load_recipe
from bertkit.tasks import TaskContext, load_task
from tests.metrics.spans import TAGS, TYPES, any_tags, rows_of_spans

pairs_of_tags = st.lists(st.sampled_from(TAGS) | st.just("O"), max_size=12).flatmap(
    lambda gold: st.tuples(st.just(gold), st.lists(st.sampled_from(TAGS), min_size=len(gold), max_size=len(gold)))
)


def seqeval_spans(tags):
    return [(kind, start, end + 1) for kind, start, end in get_entities(tags)]


@given(any_tags)
def test_spans_are_those_of_seqeval(tags):
    assert entities.find_spans(tags) == seqeval_spans(tags)


@given(any_tags)
@settings(deadline=None)
def test_strict_spans_are_those_of_seqeval_in_strict_mode(tags):
    found = Entities([tags], IOB2).entities[0]
    assert entities.find_strict_spans(tags) == [(each.tag, each.start, each.end) for each in found]


def chunk_begins(before, tag):
    """Tell whether a chunk begins at `tag`, as conlleval reads tags of any quality."""
    return tag != "O" and (tag[0] == "B" or before == "O" or before[2:] != tag[2:])


def chunk_ends(before, tag):
    """Tell whether a chunk ended just before `tag`."""
    return before != "O" and (tag == "O" or tag[0] == "B" or before[2:] != tag[2:])


def count_chunks(gold, predicted):
    """Count (right, gold, predicted) chunks in one walk, as conlleval.pl does: both must begin and end together."""
    right = gold_count = predicted_count = 0
    both_open = False
    before_gold = before_predicted = "O"
    for gold_tag, predicted_tag in zip([*gold, "O"], [*predicted, "O"], strict=True):
        gold_ends, predicted_ends = chunk_ends(before_gold, gold_tag), chunk_ends(before_predicted, predicted_tag)
        if both_open and (gold_ends or predicted_ends):
            right += gold_ends and predicted_ends
            both_open = False
        gold_begins, predicted_begins = (
            chunk_begins(before_gold, gold_tag),
            chunk_begins(before_predicted, predicted_tag),
        )
        gold_count, predicted_count = gold_count + gold_begins, predicted_count + predicted_begins
        if gold_begins and predicted_begins and gold_tag[2:] == predicted_tag[2:]:
            both_open = True
        before_gold, before_predicted = gold_tag, predicted_tag
    return right, gold_count, predicted_count


@given(st.lists(pairs_of_tags, min_size=1, max_size=4))
@settings(deadline=None)
def test_scores_are_those_of_conlleval(rows):
    right, gold, predicted = np.sum([count_chunks(*row) for row in rows], axis=0)
    spans = [(entities.find_spans(one), entities.find_spans(other)) for one, other in rows]
    counts = entities.count_spans(spans, TYPES)
    assert counts.sum(axis=(0, 1)).tolist() == [right, gold, predicted]
    found = entities.compute_ratios(counts.sum(axis=(0, 1)))
    precision, recall = right / predicted if predicted else 0.0, right / gold if gold else 0.0
    assert found["precision"] == pytest.approx(precision)
    assert found["recall"] == pytest.approx(recall)
    assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall) if right else 0.0)


def test_scores_of_an_example_counted_by_hand():
    gold = ["B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O", "B-PER"]
    predicted = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC", "B-PER"]
    assert count_chunks(gold, predicted) == (2, 3, 4)
    spans = entities.find_spans(gold), entities.find_spans(predicted)
    counts = entities.count_spans([spans], ["PER", "LOC"])
    assert counts.tolist() == [[[2, 2, 2], [0, 1, 2]]]
    table = entities.score_types([spans])
    assert [(each["type"], each["f1"], each["gold"]) for each in table] == [("PER", 1.0, 2), ("LOC", 0.0, 1)]
    assert entities.score_types([([], [])]) == []


@given(st.lists(st.tuples(rows_of_spans(), rows_of_spans()), min_size=1, max_size=5))
@settings(deadline=None)
def test_the_table_of_seqeval_has_the_counts_of_spans_of_characters_too(rows):
    pairs = []
    for (gold, _), (predicted, _) in rows:
        shift = len(gold) % 2  # of all predicted spans, so that some boundaries differ by a character
        moved = [(name, 7 * start + shift, 7 * end + shift) for name, start, end in predicted]
        pairs.append(([(name, 7 * start, 7 * end) for name, start, end in gold], moved))
    counts = entities.count_spans(pairs, TYPES).sum(axis=0)
    table = {row["type"]: row for row in entities.score_types(pairs)}
    assert set(table) == {name for name, (_, gold, predicted) in zip(TYPES, counts, strict=True) if gold or predicted}
    for name, row in table.items():
        right, gold, predicted = counts[TYPES.index(name)]
        assert row["gold"] == gold
        expected = right / max(predicted, 1), right / max(gold, 1), 2 * right / (gold + predicted)
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx(expected)


@given(rows_of_spans(), rows_of_spans())
def test_every_entity_is_counted_once(gold_row, predicted_row):
    gold, predicted = gold_row[0], predicted_row[0]
    counts = entities.count_outcomes(gold, predicted)
    assert set(counts) <= set(entities.OUTCOMES)
    assert all(counts.values())
    met = counts["right"] + counts["wrong type"] + counts["wrong boundary"] + counts["wrong both"]
    assert met + counts["missed"] == len(gold)
    assert met + counts["spurious"] == len(predicted)
    assert counts["right"] == len(set(gold) & set(predicted))


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        ([("A", 0, 2)], [("A", 0, 2)], {"right": 1}),
        ([("A", 0, 2)], [("B", 0, 2)], {"wrong type": 1}),
        ([("A", 0, 2)], [("A", 1, 3)], {"wrong boundary": 1}),
        ([("A", 0, 2)], [("B", 1, 3)], {"wrong both": 1}),
        ([("A", 0, 2)], [("A", 2, 3)], {"missed": 1, "spurious": 1}),
        ([("A", 0, 4)], [("A", 0, 2), ("A", 2, 4)], {"wrong boundary": 1, "spurious": 1}),
        ([("A", 0, 2), ("A", 2, 4)], [("A", 0, 4)], {"wrong boundary": 1, "missed": 1}),
        ([("A", 0, 1), ("B", 1, 2)], [("B", 0, 2)], {"wrong boundary": 1, "missed": 1}),
        ([], [], {}),
    ],
)
def test_what_becomes_of_entities(gold, predicted, counts):
    assert entities.count_outcomes(gold, predicted) == Counter(counts)


def test_wrong_words_are_shown_with_how_sure_a_wrong_one_is():
    words, gold, tags = ["Ada", "saw", "Rome"], ["B-PER", "O", None], ["B-LOC", "B-PER", "B-LOC"]
    sure = [0.9, 0.4, None]
    assert entities.describe_wrong_words(words, gold, tags, sure) == (
        "Ada/B-PER saw/O",
        "Ada/B-LOC saw/B-PER",
        False,
        0.9,
    )


def count_wrong_rows(row_scores):
    right, gold, _ = row_scores["tags"].sum(axis=1).T
    return int((right < gold).sum()), len(gold)


def test_a_metric_of_tags_is_one_entry_of_the_table(monkeypatch):
    monkeypatch.setitem(entities.METRICS, "wrong_rows", ratio_metric(count_wrong_rows, lower_is_better=True))
    recipe = load_recipe("ner", {"metrics": ["f1", "wrong_rows"]})
    task, context = load_task(recipe), TaskContext(recipe, None, tuple(recipe.labels))
    rows = [{"tokens": ["Rome", "fell"], "tags": ["B-LOC", "O"]}, {"tokens": ["EU"], "tags": ["B-ORG"]}] * 10
    row_scores = task.compare([{"prediction": ["B-LOC", "O"]}, {"prediction": ["O"]}] * 10, rows, context)
    scores = task.score(row_scores, context)
    found = find_intervals(task.METRICS, scores, row_scores, lambda drawn: task.score(drawn, context), samples=20)
    assert scores["wrong_rows"] == 0.5
    assert found.methods == {"f1": "bootstrap", "wrong_rows": "Wilson"}
    assert found.bounds["wrong_rows"] == wilson_interval(10, 20)
