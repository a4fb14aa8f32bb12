"""Vectors of words and tokens, compared with a plain forward pass over each row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertkit.errors import DataError, UsageError
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.units import UNITS, check_unit

TEXT = "the xyz film"  # xyz is three tokens
WORDS = ["the", "xyz", "film"]


@pytest.fixture(scope="module")
def embedder(tiny_model):
    return Embedder(str(tiny_model), precision="fp32")


@pytest.fixture(scope="module")
def states(tiny_model):
    """The hidden states of the tokens of TEXT, without those of the special tokens."""
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_model), AutoModel.from_pretrained(tiny_model).eval()
    with torch.no_grad():
        return model(**tokenizer(TEXT, return_tensors="pt")).last_hidden_state[0, 1:-1].numpy()


def test_a_token_has_its_hidden_state(embedder, states):
    result = UNITS["token"].encode(embedder, ["a", TEXT])
    assert list(result.rows) == [0, 1, 1, 1, 1, 1]
    assert result.columns == {"index": [0, 0, 1, 2, 3, 4], "token": ["a", "the", "x", "##y", "##z", "film"]}
    np.testing.assert_allclose(result.vectors[1:], states, atol=1e-6)


def test_a_word_has_the_mean_of_its_tokens(embedder, states):
    result = UNITS["word"].encode(embedder, [WORDS, ["good"]])
    assert result.columns == {"index": [0, 1, 2, 0], "word": [*WORDS, "good"]}
    np.testing.assert_allclose(result.vectors[:3], [states[0], states[1:4].mean(axis=0), states[4]], atol=1e-6)


def test_a_target_is_one_word_of_its_row(embedder, states):
    result = UNITS["target"].encode(embedder, [(WORDS, 2), (WORDS, 1)])
    assert list(result.rows) == [0, 1] and result.columns["word"] == ["film", "xyz"]
    np.testing.assert_allclose(result.vectors, [states[4], states[1:4].mean(axis=0)], atol=1e-6)
    with pytest.raises(DataError, match="has no visible character"):
        UNITS["target"].encode(embedder, [(["the", "\u200b"], 1)])


def test_every_word_of_a_long_row_has_a_vector(tiny_model):
    words = ["the", "good", "film", "is", "bad"] * 8
    short, whole = (Embedder(str(tiny_model), precision="fp32", max_length=length) for length in (12, 64))
    windows = UNITS["word"].encode(short, [words])
    assert windows.columns["word"] == words
    reference = UNITS["word"].encode(whole, [words[:10]])
    np.testing.assert_allclose(windows.vectors[0], UNITS["word"].encode(short, [words[:10]]).vectors[0])
    assert windows.vectors.shape[1] == reference.vectors.shape[1]


def test_rows_may_have_no_words(embedder):
    result = UNITS["word"].encode(embedder, [[], ["\u200b"]])
    assert len(result.vectors) == len(result.rows) == 0


def test_words_have_length_1_where_that_is_asked(tiny_model):
    embedder = Embedder(str(tiny_model), precision="fp32", normalize=True)
    vectors = UNITS["word"].encode(embedder, [WORDS]).vectors
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("option", [{"pooling": "cls"}, {"dimension": 4}, {"prompt": "query"}, {"prefix": "query: "}])
def test_options_of_whole_texts_are_refused(tiny_model, option):
    with pytest.raises(UsageError, match="with --unit word"):
        check_unit("word", Embedder(str(tiny_model), **option))
    check_unit("text", Embedder(str(tiny_model), **option))
