"""Importance by gradient is that of a plain loop over rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.compression.importance import choose_units, get_loss, score_units
from bertkit.errors import UsageError
from bertkit.modeling.students.units import find_attention_outputs, find_feed_forwards
from tests.compression.measured import load_measured


def test_gradient_scores_are_means_of_absolute_values_over_rows(trained):
    checkpoint, _, features = load_measured(trained)
    found = score_units(checkpoint, features)
    model, collate = checkpoint.model, checkpoint.task.collator(checkpoint.context)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    layers = [*find_attention_outputs(model), *(one.narrow for one in find_feed_forwards(model))]
    states = {}

    def keep(layer, inputs):
        states[layer] = inputs[0]
        inputs[0].retain_grad()

    for layer in layers:
        layer.register_forward_pre_hook(keep)
    expected = dict.fromkeys(layers, 0.0)
    for feature in features:
        model(**collate([feature])).loss.backward()
        for layer in layers:
            units = 2 if layer in layers[:2] else 64
            products = (states[layer] * states[layer].grad).view(-1, units, states[layer].shape[-1] // units)
            expected[layer] += products.sum(dim=(0, 2)).abs().detach().numpy() / len(features)
    assert np.allclose(found.heads, [expected[layer] for layer in layers[:2]], rtol=1e-3, atol=1e-7)
    assert np.allclose(found.neurons, [expected[layer] for layer in layers[2:]], rtol=1e-3, atol=1e-7)


def test_an_encoder_that_is_frozen_under_its_head_is_refused(trained):
    checkpoint, _, features = load_measured(trained)
    checkpoint.model.base_model.requires_grad_(False)
    with pytest.raises(UsageError, match="is frozen under its head"):
        score_units(checkpoint, features)


def test_heads_that_share_keys_stay_together():
    scores = np.array([[0.0, 9.0, 5.0, 5.0, 1.0, 1.0]])
    assert choose_units(scores, 4, group_size=2) == [[0, 1, 2, 3]]
    assert choose_units(scores, 1) == [[1]]


def test_a_model_without_a_loss_is_refused():
    with pytest.raises(UsageError, match="computes no loss on these rows"):
        get_loss({"logits": torch.ones(1)})
