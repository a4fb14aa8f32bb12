"""Similar vectors, compared with a plain loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.vectors import near_vectors
from bertkit.vectors.near_vectors import find_nearest, find_similar
from bertkit.vectors.vector_files import to_unit_length


def draw(rows=400, dimension=16, seed=0):
    """Draw vectors, most of them near an earlier one, at many distances."""
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((rows, dimension))
    for row in range(rows // 4, rows):
        vectors[row] = vectors[random.integers(row)] + random.uniform(0, 0.6) * random.standard_normal(dimension)
    return to_unit_length(vectors.astype(np.float32))


def by_loop(vectors, threshold, fixed):
    kept = list(range(fixed))
    for row in range(fixed, len(vectors)):
        if not kept or (vectors[kept] @ vectors[row]).max() < threshold:
            kept.append(row)
    return kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fixed", [0, 50])
@pytest.mark.parametrize("threshold", [0.8, 0.95])
def test_blocks_keep_what_a_loop_keeps(threshold, fixed, dtype, monkeypatch):
    monkeypatch.setattr(near_vectors, "_fast_dtype", lambda rows: dtype)
    monkeypatch.setattr(near_vectors, "_BLOCK", 37)
    monkeypatch.setattr(near_vectors, "_CHUNK", 53)
    vectors = draw()
    similar = find_similar(vectors, threshold, fixed=fixed)
    assert np.flatnonzero(similar.matches < 0).tolist() == by_loop(vectors, threshold, fixed)
    gone = np.flatnonzero(similar.matches >= 0)
    cosines = (vectors[gone] * vectors[similar.matches[gone]]).sum(axis=1)
    np.testing.assert_allclose(similar.cosines[gone], cosines, atol=1e-6)
    assert (similar.matches[similar.matches[gone]] < 0).all()


def test_the_nearest_is_another_row(monkeypatch):
    monkeypatch.setattr(near_vectors, "_CHUNK", 64)
    vectors, own = draw(), np.array([3, 100, 399])
    nearest, cosines = find_nearest(vectors[own], vectors, own)
    products = vectors[own] @ vectors.T
    products[np.arange(3), own] = -2
    np.testing.assert_array_equal(nearest, products.argmax(axis=1))
    np.testing.assert_allclose(cosines, products.max(axis=1), rtol=1e-6)
