"""Approximate search beside exact search, and what its manifest says of it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bertkit.errors import DataError, ResourceError, UnavailableError
from bertkit.vectors.search import approximate
from bertkit.vectors.search.build import add_to_index, build_index, delete_from_index
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.manifest import Manifest
from tests.vectors.search.test_index import chunks_of, make_vectors

# few queries measure the recall, since tests need no more
pytestmark = pytest.mark.usefixtures("small_sample")
VECTORS, QUERIES = make_vectors(800, 32), make_vectors(20, 32, seed=1)


@pytest.fixture
def small_sample(monkeypatch):
    monkeypatch.setattr(approximate, "_SAMPLE", 50)
    monkeypatch.setattr(approximate, "_TIMED", 3)


def build(folder, method):
    return build_index(folder, Manifest(32), chunks_of(VECTORS[:600]), approximate=method)


def recall(index, k=10):
    truth = Index.open(index.folder, exact=True).search(QUERIES, k)[1]
    found = index.search(QUERIES, k)[1]
    return np.mean([len(set(a) & set(b)) / k for a, b in zip(truth.tolist(), found.tolist(), strict=True)])


@pytest.mark.parametrize("method", ["hnsw", "ivf", "binary"])
def test_what_is_found_is_nearly_what_exact_search_finds(method, tmp_path):
    index = build(tmp_path / "index", method)
    entry = index.manifest.approximate
    assert (entry["method"], entry["rows"], list(entry["files"])) == (method, 600, [f"{method}.faiss"])
    assert entry["recall_at_10"] >= 0.98
    assert recall(index) >= 0.9
    # rows that come later are searched exactly, and deleted ones not at all
    index = add_to_index(index, chunks_of(VECTORS[600:], first=600))
    nearest = index.search(QUERIES, 5)[1][:, 0]
    index = delete_from_index(index, nearest)
    scores, rows = index.search(QUERIES, 10)
    assert recall(index) >= 0.9
    assert not np.isin(rows, nearest).any()
    assert (rows >= 600).any()
    # scores are exact, whatever found the rows
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (VECTORS, QUERIES)]
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", unit[1], unit[0][rows]), atol=1e-6)
    assert (np.diff(scores) <= 0).all()
    # where few are left, all of them are found
    index = delete_from_index(index, range(5, 800))
    assert set(index.search(QUERIES[0], 50)[1][0].tolist()) == set(range(5)) - set(nearest.tolist())


def test_a_damaged_file_is_named(tmp_path):
    index = build(tmp_path / "index", "hnsw")
    file = index.folder / "hnsw.faiss"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DataError, match=r"damaged \(.*hnsw\.faiss\)"):
        Index.open(index.folder).search(QUERIES, 5)
    Index.open(index.folder, exact=True).search(QUERIES, 5)


def test_without_faiss_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UnavailableError, match=r"pip install .*\[search\]"):
        build(tmp_path / "index", "auto")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """Whatever words faiss has for it."""
    import faiss

    def refuse(*_):
        raise RuntimeError("Error in write_index: write error in hnsw.faiss: 8 != 4 (No space left on device)")

    monkeypatch.setattr(faiss, "write_index", refuse)
    with pytest.raises(ResourceError, match=r"No space left.*free some space"):
        build(tmp_path / "index", "hnsw")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("rows, method", [(1000, "hnsw"), (10**7, "ivf")])
def test_the_method_goes_by_the_number_of_rows(rows, method):
    assert approximate.check_method("auto", rows) == method


def test_the_recall_may_be_measured_with_queries(tmp_path):
    chunks = chunks_of(VECTORS[:600])
    index = build_index(tmp_path / "index", Manifest(32), chunks, approximate="binary", queries=lambda: QUERIES)
    entry = index.manifest.approximate
    assert (entry["queries"], entry["queries_are_rows"]) == (20, False)
    assert entry["recall_at_10"] == pytest.approx(recall(index), abs=1e-9)
