"""Rankings into one, by hand."""

from __future__ import annotations

import pytest

from bertkit.vectors.search.retrieval import fuse_rankings


def test_scores_are_sums_of_reciprocal_ranks():
    fused = fuse_rankings([["a", "b"], ["b", "c"], []])
    assert [item for item, _ in fused] == ["b", "a", "c"]
    assert [score for _, score in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62])
