"""The mix of layers: its slopes, and that it turns to the layer that knows."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.insight.probing.layers import center_of_gravity, mix_layers, read_all_layers
from tests.insight.probing.made_up import WIDTH, make_task, make_vectors


def test_a_mix_turns_to_the_layer_that_knows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, size=200)
    layers = rng.normal(size=(4, 200, 6)).astype(np.float32)
    layers[2, :, :3] += 3 * np.eye(3)[labels]
    shares = mix_layers(layers, labels, 10.0, 3)
    assert shares.sum() == pytest.approx(1) and shares[2] > 0.9
    assert center_of_gravity(shares) == pytest.approx(2, abs=0.2)
    values = layers[1, :, 0] * 2
    assert mix_layers(layers, values - values.mean(), 10.0)[1] > 0.9


@pytest.mark.slow
def test_a_mix_is_that_of_torch():
    """The same loss, minimized by torch with gradients of its own."""
    import torch

    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, size=150)
    layers = rng.normal(size=(3, 150, 5)).astype(np.float32)
    for layer, size in ((0, 0.8), (2, 1.2)):
        layers[layer, :, :3] += size * np.eye(3)[labels]
    shares = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    weights = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    descent = torch.optim.LBFGS([shares, weights], max_iter=300, line_search_fn="strong_wolfe", tolerance_change=1e-12)
    states, gold = torch.tensor(layers, dtype=torch.float64), torch.tensor(labels)

    def loss():
        descent.zero_grad()
        mixed = torch.einsum("l,lnd->nd", torch.softmax(shares, 0), states)
        total = torch.nn.functional.cross_entropy(mixed @ weights, gold, reduction="sum") + 5 * (weights**2).sum()
        total.backward()
        return total

    descent.step(loss)
    np.testing.assert_allclose(mix_layers(layers, labels, 10.0, 3), torch.softmax(shares, 0).detach(), atol=0.02)


def test_all_layers_are_standardized():
    train = make_task()[1]
    layers = read_all_layers(train, np.arange(100))
    assert layers.shape == (5, 100, WIDTH + 1)
    np.testing.assert_allclose(layers[3, :, 0].std(), 1, atol=1e-4)
    assert make_vectors(np.eye(3), 0, np.random.default_rng(0)).vectors.layers == 4
