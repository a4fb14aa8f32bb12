"""Queries, keys and values by one product; `test_architectures` compares it with the plain model for each type."""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification

from bertkit.modeling.attention import merged_projections
from bertkit.modeling.cls_only import cls_only_last_layer
from bertkit.modeling.info import SpeedPaths, info_of
from tests.modeling.tiny_models import make_tiny, make_tiny_batch


def count_products(model, monkeypatch) -> int:
    """Count the linear products of a forward pass."""
    sizes = []
    linear = functional.linear

    def counted(states, weight, bias=None):
        sizes.append(len(weight))
        return linear(states, weight, bias)

    monkeypatch.setattr(functional, "linear", counted)
    model(**make_tiny_batch())
    monkeypatch.undo()
    return len(sizes)


def test_three_products_become_one_and_three_again(monkeypatch):
    model = make_tiny("bert", AutoModel)
    before = count_products(model, monkeypatch)
    with merged_projections(model):
        assert info_of(model).speed_paths.merged_projections == 2
        assert count_products(model, monkeypatch) == before - 2 * 2
    assert info_of(model).speed_paths == SpeedPaths()
    assert count_products(model, monkeypatch) == before


def test_a_last_layer_for_one_token_keeps_its_own_query():
    model = make_tiny("bert", AutoModelForSequenceClassification)
    cls_only_last_layer(model)
    expected = model(**make_tiny_batch()).logits
    with merged_projections(model):
        assert info_of(model).speed_paths.merged_projections == 1
        torch.testing.assert_close(model(**make_tiny_batch()).logits, expected, rtol=0, atol=1e-6)


def test_other_states_are_projected_alone():
    model = make_tiny("bert", AutoModel)
    attention = model.encoder.layer[0].attention.self
    states, others = torch.randn(2, 1, 3, 16)
    expected = [attention.query(states), attention.key(others), attention.value(states)]
    with merged_projections(model):
        projected = [attention.query(states), attention.key(others), attention.value(states)]
    for ours, plain in zip(projected, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)


def test_in_bf16_states_are_projected_as_autocast_does():
    model = make_tiny("bert", AutoModel)
    attention, states = model.encoder.layer[0].attention.self, torch.randn(1, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        expected = attention.value(states)
        with merged_projections(model):
            projected = [layer(states) for layer in (attention.query, attention.key, attention.value)]
    assert projected[2].dtype == torch.bfloat16
    torch.testing.assert_close(projected[2], expected, rtol=0.01, atol=0.001)
