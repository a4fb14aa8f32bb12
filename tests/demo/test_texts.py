"""Texts say what their label says."""

from __future__ import annotations

from random import Random

import pytest

from bertkit.demo import texts
from bertkit.demo.grammar import CATEGORY_OF


@pytest.mark.parametrize("write", [texts.write_paraphrase, texts.write_duplicate])
def test_an_equal_pair_has_the_same_nouns(write):
    for seed in range(50):
        first, second = (
            {word.rstrip(".?s").lower() for word in text.split()} & set(CATEGORY_OF)
            for text in write(Random(seed), "equivalent")
        )
        assert first == second


def test_a_review_has_words_of_its_own_polarity():
    praise = [texts.write_review(Random(seed), "positive")[0] for seed in range(50)]
    blame = [texts.write_review(Random(seed), "negative")[0] for seed in range(50)]
    assert not set(praise) & set(blame)


def test_the_subject_tells_the_topic():
    subjects = {"alive": set(), "not alive": set()}
    for label, nouns in subjects.items():
        for seed in range(100):
            first, second = texts.write_topic(Random(seed), label, ("alive", "not alive"))
            assert first.endswith(".") and second.endswith(".")
            nouns.update({word.rstrip(".") for word in first.lower().split()[:3]} & set(CATEGORY_OF))
    assert {"king", "queen", "nurse"} <= subjects["alive"]
    assert {"piano", "kite"} <= subjects["not alive"]
    assert not subjects["not alive"] & {"king", "queen", "nurse"}


def test_prose_is_sentences():
    for write in texts.PROSE:
        assert all(text[0].isupper() and text[-1] in ".?" for text in write(Random(0)))
