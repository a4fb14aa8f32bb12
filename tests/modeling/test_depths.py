"""How deep each weight lies: beside what autograd says of the same models, for every architecture in the table."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from bertkit.modeling.architectures import ARCHITECTURES
from bertkit.modeling.depths import find_depths, find_encoder_layers, freeze, reinitialize
from tests.kills import slow_unless
from tests.modeling.tiny_models import make_tiny, make_tiny_batch

TEXTS, TOKENS = AutoModelForSequenceClassification, AutoModelForTokenClassification
SHARED = {"albert"}
QUICK = {"albert", "bert", "deberta-v2", "gte", "jina_embeddings_v3", "modernbert", "mpnet"}


def detach_output(layer, arguments, output):
    return (output[0].detach(), *output[1:]) if isinstance(output, tuple) else output.detach()


def weights_with_gradients(model, below=None):
    """The weights that have gradients where nothing flows back into what is below a module's output."""
    hook = below and below.register_forward_hook(detach_output)
    model.zero_grad()
    model(**make_tiny_batch()).logits.square().sum().backward()
    if hook:
        hook.remove()
    return {name for name, weights in model.named_parameters() if weights.grad is not None}


@pytest.mark.parametrize("model_type", slow_unless(QUICK, sorted(ARCHITECTURES)))
def test_depths_are_those_that_gradients_reach(model_type):
    for auto_class in (TEXTS, TOKENS) if model_type == "bert" else (TEXTS,):
        model = make_tiny(model_type, auto_class)
        depths, layers = find_depths(model), find_encoder_layers(model)
        assert depths.layers == len(layers) == (1 if model_type in SHARED else 2)
        names = {weights: name for name, weights in model.named_parameters()}
        assert set(depths.by_weight) == set(names)
        trained = weights_with_gradients(model)
        if model_type not in SHARED:
            assert weights_with_gradients(model, layers[-1]) == {names[one] for one in depths.select(depths.head)}
            above = weights_with_gradients(model, layers[0])
            # positions that layers share have gradients from all of them, and count among the embeddings
            assert above - {names[one] for one in depths.select(0, 0)} == {names[one] for one in depths.select(2)}
        freeze(model, "embeddings" if model_type in SHARED else 1)
        left = weights_with_gradients(model)
        frozen = {names[one] for one in depths.select(0, 0 if model_type in SHARED else 1)}
        assert left == trained - frozen and frozen and left


@pytest.mark.parametrize("model_type", slow_unless(QUICK, sorted(ARCHITECTURES)))
def test_the_top_layers_and_the_pooler_are_drawn_as_a_new_model_draws_them(model_type):
    model = make_tiny(model_type, TEXTS, config={"initializer_range": 0.5, "init_std": 0.5})
    fresh = {name: weights.detach().clone() for name, weights in model.named_parameters()}
    layers = find_encoder_layers(model)
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(7)
    torch.manual_seed(3)
    reinitialize(model, 1)
    again = {name: weights.detach().clone() for name, weights in model.named_parameters()}
    torch.manual_seed(3)
    reinitialize(model, 1)
    assert all(torch.equal(weights, again[name]) for name, weights in model.named_parameters())
    new = {id(weights) for weights in layers[-1].parameters()}
    if pooler := getattr(model.base_model, "pooler", None):
        new |= {id(weights) for weights in pooler.parameters()}
    for name, weights in model.named_parameters():
        if id(weights) not in new:
            assert torch.equal(weights, torch.full_like(weights, 7)), name
        elif weights.dim() == 1:  # norms and biases
            assert torch.equal(weights, fresh[name]), name
        else:
            assert float(weights.detach().std()) == pytest.approx(float(fresh[name].std()), rel=0.35), name
