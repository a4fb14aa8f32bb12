"""A broken sentence is close to the good one; equal seeds write equal sentences."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from random import Random

import pytest

from bertkit.data.demo.grammar import fill_slots, minimal_pair, pick_clause, sentence, templates


@pytest.mark.parametrize("name", templates()["breaks"])
def test_a_broken_sentence_differs_little_from_a_good_one(name):
    for seed in range(20):
        good, broken = minimal_pair(Random(seed), name)
        assert good != broken
        words = [re.findall(r"\w+", text) for text in (good, broken)]
        assert SequenceMatcher(None, *words).ratio() > 0.5, (good, broken)


def test_equal_seeds_write_equal_sentences():
    assert [sentence(pick_clause(Random(seed))) for seed in range(9)] == [
        sentence(pick_clause(Random(seed))) for seed in range(9)
    ]
    assert list(map(str, fill_slots(Random(1)).values())) == list(map(str, fill_slots(Random(1)).values()))


def test_a_clause_asks_for_each_of_its_parts():
    clause = pick_clause(Random(3))
    questions = [sentence(clause.question_about(part)) for part in ("subject", "object", "location")]
    assert len(set(questions)) == 3
    assert all(question.endswith("?") for question in questions)
