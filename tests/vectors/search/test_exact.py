"""Exact search beside a full scan in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.vectors.search import exact
from bertkit.vectors.search.build import add_to_index, build_index
from bertkit.vectors.search.exact import exact_search
from bertkit.vectors.search.manifest import Manifest, ShardInfo
from bertkit.vectors.search.passages import Coverage
from bertkit.vectors.search.shard import prepare, round_to_bf16, widen
from tests.vectors.search.test_index import make_vectors

NONE = np.zeros(0, dtype=np.int64)


class InMemory:
    """A shard that is no file."""

    def __init__(self, vectors):
        self.vectors, self.rounded = vectors, round_to_bf16(vectors)
        rounding = np.linalg.norm(vectors - widen(self.rounded), axis=1).max()
        self.info = ShardInfo("", len(vectors), float(np.linalg.norm(vectors, axis=1).max()), float(rounding))


def full_scan(vectors, queries, k):
    """Rank all rows in float64; of equal scores, as float32, the earlier row comes first."""
    scores = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, axis=1), rows


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and passes so small that there are many."""
    monkeypatch.setattr(exact, "_BLOCK", 128)
    monkeypatch.setattr(exact, "_BLOCK_OF_ONE", 256)
    monkeypatch.setattr(exact, "_QUERIES", 8)


@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("order", ["random", "ascending"])
def test_every_block_counts(queries, order, small_blocks):
    """In ascending order, each block has more above the threshold than the one before."""
    vectors, asked = make_vectors(1000), make_vectors(queries, seed=1)
    if order == "ascending":
        vectors = vectors[np.argsort(vectors @ asked[0])]
    shards = [InMemory(vectors[:700]), InMemory(vectors[700:])]
    scores, rows = exact_search(shards, asked, 10, NONE)
    expected, best = full_scan(vectors, asked, 10)
    np.testing.assert_array_equal(rows, best)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_vectors_that_are_read_again_from_disk_are_the_same(tmp_path, small_blocks, monkeypatch):
    vectors, asked = make_vectors(3000), make_vectors(20, seed=1)
    rows = [{"id": number, "text": "a"} for number in range(3000)]
    index = build_index(tmp_path / "index", Manifest(16), lambda _: [(rows[:1800], vectors[:1800], Coverage())])
    index = add_to_index(index, lambda _: [(rows[1800:], vectors[1800:], Coverage())])
    monkeypatch.setattr(exact, "_MAPPED", 0)
    for _ in range(2):
        scores, numbers = index.search(asked, 10)
        expected, best = full_scan(
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True), prepare(asked, "cosine"), 10
        )
        np.testing.assert_array_equal(numbers, best)
        np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_a_query_is_found_alike_alone_and_among_others(small_blocks):
    shards, asked = [InMemory(make_vectors(600))], make_vectors(20, seed=1)
    together = exact_search(shards, asked, 5, NONE)
    alone = [exact_search(shards, query[None], 5, NONE) for query in asked]
    for number in (0, 1):
        np.testing.assert_array_equal(together[number], np.concatenate([each[number] for each in alone]))


def test_copies_are_scanned_again_and_come_in_order(small_blocks, monkeypatch):
    """Of many copies, those that bf16 has not kept would be missing."""
    scans = []
    scan = exact._scan_rows
    monkeypatch.setattr(
        exact, "_scan_rows", lambda *args, rounded: scans.append(rounded) or scan(*args, rounded=rounded)
    )
    vectors = np.repeat(make_vectors(1), 300, axis=0)
    vectors[50] = vectors[50] * (1 + 1e-4)  # less than bf16 can tell
    _, rows = exact_search([InMemory(vectors)], vectors[:1], 3, NONE)
    assert rows[0, 0] == 50
    assert scans == [True, False]


def test_what_cannot_be_missing_is_not_scanned_again(small_blocks, monkeypatch):
    monkeypatch.setattr(exact, "_highest_missed", lambda shards, queries, lowest: np.full(len(queries), -np.inf))
    shards, asked = [InMemory(make_vectors(600))], make_vectors(4, seed=1)
    rows = exact_search(shards, asked, 5, NONE)[1]
    monkeypatch.undo()
    np.testing.assert_array_equal(rows, exact_search(shards, asked, 5, NONE)[1])


def test_the_bound_holds(small_blocks):
    """No product is further from that of the rounded vectors than the bound allows."""
    vectors, asked = make_vectors(2000, 64), make_vectors(3, 64, seed=1)
    shard = InMemory(vectors)
    products = asked.astype(np.float64) @ vectors.astype(np.float64).T
    rounded = widen(round_to_bf16(asked)).astype(np.float64) @ widen(shard.rounded).astype(np.float64).T
    stored = widen(round_to_bf16(rounded.astype(np.float32)))
    for row in range(0, 2000, 100):
        assert (products[:, row] <= exact._highest_missed([shard], asked, stored[:, row])).all()


def test_deleted_rows_are_left_out(small_blocks):
    vectors, asked = make_vectors(600), make_vectors(9, seed=1)
    deleted = np.arange(200, 590)
    _, rows = exact_search([InMemory(vectors)], asked, 12, deleted)
    alive = np.setdiff1d(np.arange(600), deleted)
    np.testing.assert_array_equal(rows, alive[full_scan(vectors[alive], asked, 12)[1]])


def test_bf16_rounds_as_torch_does():
    values = make_vectors(50)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(widen(round_to_bf16(values)), expected)
