"""Layers are left out one by one, by the loss without them."""

from __future__ import annotations

from bertkit.compression.choose_units import choose_layers, loss_with_layers
from tests.compression.measured import load_measured


def test_each_step_leaves_out_what_raises_the_loss_least():
    worth = {0: 5.0, 1: 2.0, 2: 2.0, 3: 1.0}
    seen = []

    def measure(layers):
        seen.append(tuple(layers))
        twins = 3.0 if not {1, 2} & {*layers} else 0.0  # either can stand in for the other
        return -sum(worth[layer] for layer in layers) + twins

    assert choose_layers(4, 2, measure) == [0, 1]
    assert seen[:4] == [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)] and len(seen) == 4 + 3


def test_a_first_layer_that_must_stay_does():
    assert choose_layers(3, 1, lambda layers: 0.0 if 0 not in layers else 1.0, fixed=1) == [0]


def test_the_loss_is_that_of_all_rows(trained):
    checkpoint, _, features = load_measured(trained)
    measure = loss_with_layers(checkpoint, features)
    model, collate = checkpoint.model, checkpoint.task.collator(checkpoint.context)
    expected = sum(model(**collate([feature])).loss.item() for feature in features) / len(features)
    assert abs(measure([0, 1]) - expected) < 1e-5
    assert measure([0]) != measure([0, 1])
