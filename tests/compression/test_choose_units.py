"""What is kept follows from what was measured, and the model is that of the kept numbers."""

from __future__ import annotations

import torch

from bertkit.compression.choose_units import PruningPlan, choose, keep
from bertkit.compression.target_shape import PruningTarget
from tests.compression.measured import load_measured


def test_layers_are_chosen_before_the_neurons_of_the_rest(trained):
    checkpoint, _, features = load_measured(trained, rows=4)
    kept = choose(checkpoint, features, PruningTarget(layers=1, intermediate=8))
    assert kept.heads is None and len(kept.layers) == len(kept.neurons) == 1 and len(kept.neurons[0]) == 8
    model = load_measured(trained, rows=1)[0].model
    weight = model.bert.encoder.layer[kept.layers[0]].output.dense.weight[:, kept.neurons[0]].clone()
    keep(model, kept)
    assert torch.equal(model.bert.encoder.layer[0].output.dense.weight, weight)
    assert (model.config.num_hidden_layers, model.config.intermediate_size) == (1, 8)


def test_named_layers_are_not_measured(trained):
    checkpoint, _, _ = load_measured(trained, rows=1)
    assert choose(checkpoint, [], PruningTarget(layers=(1,))) == PruningPlan([1])
