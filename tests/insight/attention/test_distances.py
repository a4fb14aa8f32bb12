"""Distances between heads are what scipy says of each token."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from bertkit.insight.attention.heads import DistanceCounter, choose_rows
from tests.insight.attention.made_up import draw_attention, make_row

ROWS = [make_row([7, 8, 9]), make_row([7])]


def test_distances_are_means_of_scipys():
    weights = draw_attention(ROWS)
    counter = DistanceCounter()
    counter.add(ROWS, weights)
    heads = [(layer, head) for layer in range(2) for head in range(3)]
    tokens = [(0, 1), (0, 2), (0, 3), (1, 1)]  # row and token that attends
    expected = np.zeros((6, 6))
    for one, (layer, head) in enumerate(heads):
        for two, (other_layer, other) in enumerate(heads):
            pairs = [(weights[layer][row, head, i], weights[other_layer][row, other, i]) for row, i in tokens]
            expected[one, two] = np.mean([jensenshannon(*pair, base=2) ** 2 for pair in pairs])
    assert counter.distances() == pytest.approx(expected, abs=1e-5)


def test_opposite_heads_are_one_bit_apart():
    weights = draw_attention(ROWS[1:], layers=1, heads=2)
    weights[0][:] = 0
    weights[0][0, 0, :, 0] = weights[0][0, 1, :, 1] = 1
    counter = DistanceCounter()
    counter.add(ROWS[1:], weights)
    assert counter.distances().tolist() == pytest.approx(np.array([[0, 1], [1, 0]]))


def test_rows_are_drawn_until_there_are_enough_tokens():
    assert choose_rows(ROWS, 100, seed=0) == {0, 1}
    assert len(choose_rows(ROWS, 1, seed=0)) == 1
    with pytest.raises(ValueError, match="nothing was added"):
        DistanceCounter().distances()
