"""Rollout and entropy are what plain loops over the definition say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertkit.insight.attention.weights import entropies, roll_out


def draw_weights(shape):
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), size=shape[:-1]).astype(np.float32)


def test_rollout_multiplies_halves_of_attention_and_identity():
    weights = draw_weights((3, 2, 4, 4))
    found = roll_out(weights)
    expected = [[float(i == j) for j in range(4)] for i in range(4)]
    for layer in range(3):
        mixed = [[(weights[layer, :, i, j].astype(float).mean() + (i == j)) / 2 for j in range(4)] for i in range(4)]
        expected = [[sum(mixed[i][k] * expected[k][j] for k in range(4)) for j in range(4)] for i in range(4)]
        assert np.allclose(found[layer], expected, atol=1e-6)
    assert found.sum(axis=-1) == pytest.approx(1)


def test_entropies_are_means_over_tokens():
    weights = draw_weights((2, 2, 3, 3))
    weights[0, 0, 0] = [0, 1, 0]
    found = entropies(weights)
    for layer, head in np.ndindex(2, 2):
        rows = [-sum(w * math.log(w) for w in row if w > 0) for row in weights[layer, head].tolist()]
        assert found[layer, head] == pytest.approx(sum(rows) / 3, abs=1e-5)
