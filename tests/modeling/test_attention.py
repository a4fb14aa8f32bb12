"""Attention that is kept for a student, and attention weights."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from bertkit.errors import ModelError
from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.attention import capture_attention, compute_attention_weights, get_attention_map
from tests.modeling.tiny_models import LENGTHS, make_tiny, make_tiny_batch


def test_kept_attention_is_a_distribution_over_real_tokens():
    model, batch = make_tiny("bert", AutoModel), make_tiny_batch()
    expected = model(**batch)[0]
    with capture_attention(model, "teacher") as maps:
        torch.testing.assert_close(model(**batch)[0], expected, rtol=0, atol=1e-6)
    shares = get_attention_map(model.encoder.layer[1], maps).exp()
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones(4, 2, 9))
    assert not shares[0, :, :, 3:].any()


def test_evaluations_keep_nothing_where_training_only_is_asked_for():
    model = make_tiny("bert", AutoModel).eval()
    expected = model(**make_tiny_batch())[0]
    with capture_attention(model, "student", in_training_only=True) as maps:
        assert torch.equal(model(**make_tiny_batch())[0], expected)
    assert not maps


def test_an_attention_of_its_own_cannot_be_read():
    model = make_tiny("deberta", AutoModel)
    with pytest.raises((ModelError, ValueError)), capture_attention(model, "teacher"):
        pass
    assert model.config._attn_implementation == "eager"


QUICK = ("albert", "deberta")  # one of each sort: with an attention function, and with code of its own


@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ARCHITECTURES]
)
def test_attention_weights_are_those_of_plain_transformers(model_type):
    model, batch = make_tiny(model_type, AutoModel).eval(), make_tiny_batch()
    before = model.config._attn_implementation
    found = compute_attention_weights(model, batch)
    assert model.config._attn_implementation == before and len(found) == 2
    plain = make_tiny(model_type, AutoModel, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = plain(**batch, output_attentions=True).attentions
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        for row, tokens in enumerate(LENGTHS):
            own = one[row, :, :tokens]
            assert torch.allclose(own.sum(-1), torch.ones(()), atol=1e-6) and not own[..., tokens:].any()


@pytest.mark.parametrize("model_type", ["fnet", pytest.param("longformer", marks=pytest.mark.slow)])
def test_models_without_weights_between_all_tokens_are_refused(model_type):
    model = make_tiny(model_type, AutoModel).eval()
    with pytest.raises(ModelError, match=f"a {model_type} model does not return the attention weights of all pairs"):
        compute_attention_weights(model, make_tiny_batch())
