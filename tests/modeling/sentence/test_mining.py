"""Hard negatives, compared with a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.modeling.sentence import mining
from bertkit.modeling.sentence.mining import add_negatives, mine_negatives

TEXTS = [[n % 17, 100 + n % 29] for n in range(40)]
TEXTS[5][0] = 107  # an anchor that is the positive of others


def make_vectors() -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(40, 2, 6))
    vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    for row, numbers in enumerate(TEXTS):  # equal texts have equal vectors
        vectors[row, 1] = vectors[next(r for r, other in enumerate(TEXTS) if other[1] == numbers[1]), 1]
    return vectors


@pytest.mark.parametrize("block", [7, 512])
def test_the_hardest_that_are_not_too_similar_are_found(monkeypatch, block):
    monkeypatch.setattr(mining, "_BLOCK", block)
    vectors = make_vectors()
    for row, found in enumerate(mine_negatives(vectors, TEXTS, 3, 0.1)):
        anchor, positive = vectors[row]
        right = {other[1] for other in TEXTS if other[0] == TEXTS[row][0]} | {TEXTS[row][0]}
        limit = anchor @ positive - 0.1 * abs(anchor @ positive)
        first = {numbers[1]: n for n, numbers in reversed(list(enumerate(TEXTS)))}
        allowed = [n for number, n in first.items() if number not in right and anchor @ vectors[n, 1] <= limit]
        assert found == sorted(allowed, key=lambda n: -(anchor @ vectors[n, 1]))[:3]


def test_rows_beyond_a_run_are_mined_by_themselves(monkeypatch):
    monkeypatch.setattr(mining, "_MOST_ROWS", 20)
    vectors = make_vectors()
    found = mine_negatives(vectors, TEXTS, 2, 0.0)
    assert found[20:] == [[20 + n for n in rows] for rows in mine_negatives(vectors[20:], TEXTS[20:], 2, 0.0)]


def test_a_feature_gets_the_positives_of_others():
    features = [{"row": n, "input_ids": [[n], [10 + n]], "texts": [n, 10 + n]} for n in range(3)]
    add_negatives(features, [[2, 1], [], [0]])
    assert [feature["input_ids"] for feature in features] == [[[0], [10], [12], [11]], [[1], [11]], [[2], [12], [10]]]
    assert [feature["texts"] for feature in features] == [[0, 10, 12, 11], [1, 11], [2, 12, 10]]
