"""Patterns of heads are what a plain loop over tokens counts, batch by batch as well as at once."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from bertkit.insight.attention.patterns import PATTERNS, PatternCounter, PatternTable
from tests.insight.attention.made_up import draw_attention, make_row

ROWS = [make_row([10, 11, 10, 5]), make_row([12, 5]), make_row([10, 13, 11, 11, 10])]
NAMES = {2: "[CLS]", 3: "[SEP]", 5: ".", 10: "the", 11: "##s", 12: "cat", 13: "Ġa"}


class Names:
    def convert_ids_to_tokens(self, token):
        return NAMES[token]


def recount(rows, weights, layer, head):
    """Count all patterns token by token; return means over the tokens that attend, and those of uniform attention."""
    counts = Counter(token for row in rows for token in row.feature["input_ids"][1:-1])
    sums, uniform, tokens = Counter(), Counter(), 0
    for number, row in enumerate(rows):
        ids = row.feature["input_ids"]
        last = len(ids) - 1
        rarest = min(counts[token] for token in ids[1:-1])
        for i in range(1, last):
            tokens += 1
            own = weights[layer][number, head, i].tolist()[: len(ids)]
            entropy = -sum(w * math.log(w) for w in own if w > 0)
            sums["entropy"] += entropy
            sums["normalized"] += entropy / math.log(len(ids))
            for j, token in enumerate(ids):
                is_text = 0 < j < last
                names = {
                    "itself": i == j,
                    "previous": is_text and j == i - 1,
                    "next": is_text and j == i + 1,
                    "same": is_text and i != j and token == ids[i],
                    "first": j == 0,
                    "separator": j == last,
                    "punctuation": token == 5,
                    "rare": is_text and counts[token] == rarest,
                }
                for name, applies in names.items():
                    sums[name] += own[j] * applies
                    uniform[name] += applies / len(ids)
    return {name: value / tokens for name, value in sums.items()}, {n: v / tokens for n, v in uniform.items()}, tokens


def test_patterns_are_those_of_a_plain_loop():
    weights = draw_attention(ROWS)
    counter = PatternCounter(ROWS, Names())
    counter.add(ROWS, weights)
    table = counter.table()
    for layer, head in np.ndindex(2, 3):
        expected, uniform, tokens = recount(ROWS, weights, layer, head)
        assert table.tokens == tokens
        assert table.shares[layer, head] == pytest.approx([expected[name] for name in PATTERNS], abs=1e-6)
        assert table.uniform == pytest.approx([uniform[name] for name in PATTERNS])
        assert table.entropy[layer, head] == pytest.approx(expected["entropy"], abs=1e-5)
        assert table.normalized_entropy[layer, head] == pytest.approx(expected["normalized"], abs=1e-5)
    parts = PatternCounter(ROWS, Names())
    for number, row in enumerate(ROWS):
        parts.add([row], [layer[number : number + 1] for layer in weights])
    assert np.allclose(parts.table().shares, table.shares)


def test_a_head_is_described_by_what_gets_half_of_its_attention():
    shares = np.zeros((1, 3, len(PATTERNS)))
    shares[0, 0, 2] = 0.5
    table = PatternTable(1, shares, shares[0, 0], np.zeros((1, 3)), np.array([[0.95, 0.95, 0.5]]))
    assert [table.describe(0, head) for head in range(3)] == ["next", "broad", "mixed"]
