"""Words have universal part-of-speech tags, which a list of words does not tell."""

from __future__ import annotations

from itertools import chain
from operator import eq

from bertkit.data.demo.rows import WORD_CLASSES
from tests.data.demo.common import most_frequent_tags, rows_of


def test_words_have_universal_classes():
    rows = rows_of("pos", "train")
    assert sorted({tag for row in rows for tag in row["tags"]}) == list(WORD_CLASSES)
    assert all(len(row["tokens"]) == len(row["tags"]) for row in rows)


def test_a_list_of_words_does_not_solve_pos():
    gold, tagged = (list(chain(*tags)) for tags in most_frequent_tags("pos"))
    assert 0.7 < sum(map(eq, gold, tagged)) / len(gold) < 0.95
