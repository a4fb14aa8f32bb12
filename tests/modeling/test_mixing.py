"""Embeddings that are mixed with a baseline's: their ends are the model as it is, and the model on baseline ids."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.mixing import mixed_embeddings
from tests.modeling.tiny_models import make_tiny

IDS = torch.tensor([[2, 7, 8, 3], [2, 9, 10, 3]])


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert"])
def test_the_ends_are_the_texts_and_the_baseline(model_type):
    check_ends(model_type)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_ends_are_right_on_every_architecture(model_type):
    check_ends(model_type)


def check_ends(model_type):
    model = make_tiny(model_type, AutoModel).eval()
    mask = torch.ones_like(IDS)
    shares = torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 1]])
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([[2, 7, 8, 3], [2, 5, 5, 3]]), attention_mask=mask).last_hidden_state
        with mixed_embeddings(model, shares, 5):
            mixed = model(input_ids=IDS, attention_mask=mask).last_hidden_state
        plain = model(input_ids=IDS, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(mixed, expected)
    assert not torch.equal(plain, mixed)  # the model is as before


def test_a_batch_may_be_looked_up_in_chunks():
    model = make_tiny("bert", AutoModel).eval()
    embedding = model.get_input_embeddings()
    with torch.no_grad(), mixed_embeddings(model, torch.tensor([[1.0], [0.0]]), 5):
        found = [embedding(torch.tensor([[7]])), embedding(torch.tensor([[7]]))]
    torch.testing.assert_close(found[0][0, 0], embedding.weight[7].detach())
    torch.testing.assert_close(found[1][0, 0], embedding.weight[5].detach())
