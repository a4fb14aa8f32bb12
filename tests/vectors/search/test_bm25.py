"""BM25 against a plain loop of its formula."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from bertkit.errors import UnavailableError
from bertkit.vectors.search.bm25 import BM25, split_words

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


NONE = np.zeros(0, dtype=np.int64)


@pytest.mark.parametrize("query", ["The CAT", "dog dogs", "京", "zebra", "", "the zebra"])
def test_scores_are_those_of_the_formula_before_and_after_saving(query, tmp_path):
    numbers = np.array([0, 2, 3, 5, 6, 9])
    built = BM25.build(zip(numbers, TEXTS, strict=True))
    built.save(tmp_path / "words")
    for index in (built, BM25.load(tmp_path / "words")):
        np.testing.assert_allclose(index.score(query, numbers), plain_scores(query), rtol=1e-6)
        np.testing.assert_allclose(
            index.score(query, numbers[[4, 1]]), np.array(plain_scores(query))[[4, 1]], rtol=1e-6
        )


def test_rows_without_a_word_of_the_query_are_not_found():
    index = BM25.build(enumerate([*TEXTS, TEXTS[1]]))
    assert index.search("dog", 5, NONE)[1].tolist() == [1, 6]  # equal scores: the earlier first
    assert index.search("dog", 1, NONE)[1].tolist() == [1]
    assert index.search("dog", 1, np.array([1]))[1].tolist() == [6]
    assert index.search("zebra", 3, NONE)[1].tolist() == []
    scores, rows = index.search("the cat", 3, NONE)
    assert rows.tolist() == [5, 0, 1]
    assert scores.tolist() == index.score("the cat", rows).tolist() == sorted(scores, reverse=True)


@pytest.mark.parametrize("texts", [[""], ["", " ?!"]])
def test_texts_without_words_are_indexed_too(texts):
    index = BM25.build(enumerate(texts))
    assert index.score("cat", index.rows).tolist() == [0.0] * len(texts)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UnavailableError, match="package bm25s"):
        BM25.build(enumerate(TEXTS))


def test_jax_takes_no_gpu_for_it(tmp_path, monkeypatch):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text("raise SystemExit('takes the GPU')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "bm25s"]:
        monkeypatch.delitem(sys.modules, name)
    assert BM25.build([(0, "a cat")]).score("cat", [0]) > 0
    assert "jax" not in sys.modules
