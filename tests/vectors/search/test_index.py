"""An open index beside a plain loop over the vectors."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.vectors.search.build import add_to_index, build_index, delete_from_index
from bertkit.vectors.search.manifest import Manifest
from bertkit.vectors.search.passages import Coverage


def make_vectors(count, dimension=16, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)


def chunks_of(vectors, first=0, size=100):
    """The chunks of rows that are numbered as their vectors are."""
    records = [{"id": first + number, "text": f"text {first + number}"} for number in range(len(vectors))]
    starts = range(0, len(vectors), size)
    return lambda done: ((records[n : n + size], vectors[n : n + size], Coverage()) for n in starts if n >= done)


def plain_search(vectors, query, k, similarity="cosine"):
    """Score each vector by itself, in float64."""
    scores = []
    for vector in vectors.astype(np.float64):
        length = np.linalg.norm(vector) * np.linalg.norm(query) if similarity == "cosine" else 1.0
        scores.append(vector @ query.astype(np.float64) / length)
    best = sorted(range(len(vectors)), key=lambda row: -scores[row])[:k]
    return best, [scores[row] for row in best]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_results_are_those_of_a_plain_loop(similarity, tmp_path):
    vectors, queries = make_vectors(700), make_vectors(5, seed=1)
    index = build_index(tmp_path / "index", Manifest(16, similarity), chunks_of(vectors[:500]))
    index = add_to_index(index, chunks_of(vectors[500:], first=500))
    index = delete_from_index(index, [3, 600])
    alive = np.setdiff1d(np.arange(700), [3, 600])
    scores, rows = index.search(queries, 10)
    for query, found, values in zip(queries, rows, scores, strict=True):
        best, expected = plain_search(vectors[alive], query, 10, similarity)
        assert found.tolist() == alive[best].tolist()
        np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert [record["id"] for record in index.rows([699, 0, 510])] == [699, 0, 510]
    assert [number for number, _ in index.texts()] == alive.tolist()
    assert index.find_ids([3, 4, "699", "none"]) == {"4": 4, "699": 699}
