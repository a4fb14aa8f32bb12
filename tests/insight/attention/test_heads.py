"""Heads are measured over rows, in batches of any size."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import DataError
from bertkit.insight.attention import heads
from bertkit.insight.attention.heads import measure_heads
from bertkit.insight.attention.rows import TextOrWords
from bertkit.insight.attention.weights import attend, load_attention_model


@pytest.fixture(scope="module")
def loaded(tiny_model):
    return load_attention_model(tiny_model, "tiny")


def test_the_measures_do_not_depend_on_the_batches(loaded, monkeypatch):
    rows = [TextOrWords(text, None) for text in ("a film is so good", "bad!", "that book was dull and poor", "x " * 40)]
    found = measure_heads(loaded, rows, "a.txt", max_tokens=20)
    assert (found.rows, found.left_out, found.layers, found.heads, found.tokens) == (3, 1, 2, 2, 13)
    expected = np.zeros((2, 2))
    for row in rows[:3]:
        weights = attend(loaded, row.text, max_tokens=20).weights
        expected += weights[:, :, 1:-1, 0].sum(-1)
    assert [one.shares["first"] for one in found.measured] == pytest.approx((expected / 13).flatten(), abs=1e-6)
    monkeypatch.setattr(heads, "_TOKENS", 8)
    alone = measure_heads(loaded, rows, "a.txt", max_tokens=20)
    for one, other in zip(found.measured, alone.measured, strict=True):
        assert one.shares == pytest.approx(other.shares, abs=1e-6)
        distances = found.distances[found.measured.index(one)]
        assert one.nearest_distance == pytest.approx(sorted(distances)[1], abs=1e-4)


def test_rows_without_text_are_refused(loaded):
    with pytest.raises(DataError, match="no row has text of up to 4 tokens"):
        measure_heads(loaded, [TextOrWords("a film is good", None), TextOrWords(None, [])], "a.txt", max_tokens=4)
