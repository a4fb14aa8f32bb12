"""The units to keep follow from what was measured, and the model has their weights."""

from __future__ import annotations

import torch

from bertkit.compression.choose_units import PruningPlan, apply_plan, plan_pruning
from bertkit.compression.target_shape import PruningTarget
from tests.compression.measured import load_measured


def test_layers_are_chosen_before_the_neurons_of_the_rest(trained):
    checkpoint, _, features = load_measured(trained, rows=4)
    plan = plan_pruning(checkpoint, features, PruningTarget(layers=1, intermediate=8))
    assert plan.heads is None and len(plan.layers) == len(plan.neurons) == 1 and len(plan.neurons[0]) == 8
    model = load_measured(trained, rows=1)[0].model
    weight = model.bert.encoder.layer[plan.layers[0]].output.dense.weight[:, plan.neurons[0]].clone()
    apply_plan(model, plan)
    assert torch.equal(model.bert.encoder.layer[0].output.dense.weight, weight)
    assert (model.config.num_hidden_layers, model.config.intermediate_size) == (1, 8)


def test_named_layers_are_not_measured(trained):
    checkpoint, _, _ = load_measured(trained, rows=1)
    assert plan_pruning(checkpoint, [], PruningTarget(layers=(1,))) == PruningPlan([1])
