"""What is shown of a text is what plain transformers computes for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertkit.errors import UsageError
from bertkit.insight.attention import attend, entropies, load_attention_model, roll_out


@pytest.fixture(scope="module")
def loaded(tiny_model):
    return load_attention_model(tiny_model, "tiny")


def test_a_pair_has_the_weights_of_plain_transformers(loaded, tiny_model):
    found = attend(loaded, "A great film!", "so lovely", max_tokens=64)
    model = AutoModel.from_pretrained(tiny_model, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    with torch.no_grad():
        batch = tokenizer("A great film!", "so lovely", return_tensors="pt")
        expected = model(**batch, output_attentions=True).attentions
    assert np.array_equal(found.weights, torch.cat(expected).numpy())
    assert np.allclose(found.weights.sum(-1), 1, atol=1e-6)
    assert [token.token for token in found.tokens] == tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    assert [token.segment for token in found.tokens] == [None, 0, 0, 0, 0, None, 1, 1, None]
    assert [token.text for token in found.tokens] == [
        *("[CLS]", "A", "great", "film", "!", "[SEP]", "so", "lovely", "[SEP]")
    ]


def test_tokens_keep_the_spelling_of_the_text(loaded):
    found = attend(loaded, "Goods [SEP]", max_tokens=64)
    assert [(token.token, token.text, token.segment) for token in found.tokens][1:3] == [
        *(("good", "Good", 0), ("##s", "##s", 0))
    ]
    assert [token.segment for token in found.tokens].count(None) == 2  # a text spells no special token


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((" ",), "a text without tokens"),
        (("a", ""), "a text without tokens"),
        (("a film is good",), "6 tokens, more than --max-length 5"),
        (("a " * 70,), "72 tokens, and the model reads 64"),
    ],
)
def test_texts_that_cannot_be_shown_are_refused(loaded, texts, message):
    with pytest.raises(UsageError, match=message):
        attend(loaded, *texts, max_tokens=5)


def draw_weights(shape):
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), size=shape[:-1]).astype(np.float32)


def test_rollout_multiplies_halves_of_attention_and_identity():
    weights = draw_weights((3, 2, 4, 4))
    found = roll_out(weights)
    expected = [[float(i == j) for j in range(4)] for i in range(4)]
    for layer in range(3):
        mixed = [[(weights[layer, :, i, j].astype(float).mean() + (i == j)) / 2 for j in range(4)] for i in range(4)]
        expected = [[sum(mixed[i][k] * expected[k][j] for k in range(4)) for j in range(4)] for i in range(4)]
        assert np.allclose(found[layer], expected, atol=1e-6)
    assert found.sum(axis=-1) == pytest.approx(1)


def test_entropies_are_means_over_tokens():
    weights = draw_weights((2, 2, 3, 3))
    weights[0, 0, 0] = [0, 1, 0]
    found = entropies(weights)
    for layer, head in np.ndindex(2, 2):
        rows = [-sum(w * math.log(w) for w in row if w > 0) for row in weights[layer, head].tolist()]
        assert found[layer, head] == pytest.approx(sum(rows) / 3, abs=1e-5)
