"""BM25 against a plain loop of its formula."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from bertkit.errors import UnavailableError
from bertkit.vectors.lexical import LexicalIndex, split_words

TEXTS = ["A cat sat; the cat slept.", "The dog barked.", "", "Cats and dogs", "我爱北京", "the cat cat cat"]


def plain_scores(query: str) -> list[float]:
    """Lucene's BM25, word by word."""
    texts = [split_words(text) for text in TEXTS]
    mean = sum(map(len, texts)) / len(texts)
    scores = [0.0] * len(texts)
    for word in split_words(query):
        holding = sum(word in text for text in texts)
        idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
        for number, text in enumerate(texts):
            count = text.count(word)
            scores[number] += idf * count / (count + 1.2 * (1 - 0.75 + 0.75 * len(text) / mean))
    return scores


@pytest.mark.parametrize("query", ["The CAT", "dog dogs", "京", "zebra", "", "the zebra"])
def test_scores_are_those_of_the_formula_before_and_after_saving(query, tmp_path):
    built = LexicalIndex.build(TEXTS)
    built.save(tmp_path / "words")
    for index in (built, LexicalIndex.load(tmp_path / "words")):
        np.testing.assert_allclose(index.scores(query), plain_scores(query), rtol=1e-6)


def test_texts_without_a_word_of_the_query_are_not_found():
    index = LexicalIndex.build([*TEXTS, TEXTS[1]])
    assert index.search("dog", 5)[0].tolist() == [1, 6]  # equal scores: the earlier first
    assert index.search("dog", 1)[0].tolist() == [1]
    assert index.search("zebra", 3)[0].tolist() == []


@pytest.mark.parametrize("texts", [[""], ["", " ?!"]])
def test_texts_without_words_are_indexed_too(texts):
    index = LexicalIndex.build(texts)
    assert index.scores("cat").tolist() == [0.0] * len(texts)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UnavailableError, match="package bm25s"):
        LexicalIndex.build(TEXTS)
