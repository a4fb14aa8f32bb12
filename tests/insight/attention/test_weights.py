"""What is shown of a text is what plain transformers computes for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertkit.errors import UsageError
from bertkit.insight.attention.weights import attend, load_attention_model


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
    scores = found.queries @ found.keys.swapaxes(-1, -2)
    assert np.allclose(torch.from_numpy(scores).softmax(-1), found.weights, atol=1e-5)


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


def test_scores_with_other_terms_have_no_queries_and_keys(loaded, monkeypatch):
    """As of a model that adds a bias to its scores and still takes an attention function."""
    from bertkit.modeling.attention import attention_weights as plain

    def biased(model, batch):
        tilted = [weights * torch.linspace(1, 2, weights.shape[-1]) for weights in plain(model, batch)]
        return [weights / weights.sum(-1, keepdim=True) for weights in tilted]

    monkeypatch.setattr("bertkit.insight.attention.weights.attention_weights", biased)
    found = attend(loaded, "a film", max_tokens=9)
    assert found.queries is None and found.keys is None
