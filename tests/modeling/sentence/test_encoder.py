"""Pooling, compared with loops written out."""

from __future__ import annotations

import pytest
import torch

from bertkit.modeling.sentence.encoder import pool

LOOPS = {
    "mean": lambda tokens: sum(tokens) / len(tokens),
    "cls": lambda tokens: tokens[0],
    "max": lambda tokens: torch.stack(tokens).max(dim=0).values,
    "mean_sqrt_len_tokens": lambda tokens: sum(tokens) / len(tokens) ** 0.5,
    "weightedmean": lambda tokens: sum(n * token for n, token in enumerate(tokens, 1)) / sum(range(1, len(tokens) + 1)),
    "lasttoken": lambda tokens: tokens[-1],
}


@pytest.mark.parametrize("mode", LOOPS)
def test_a_mode_pools_the_tokens_of_each_text_alone(mode):
    states = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    lengths = [5, 2, 1]
    mask = torch.tensor([[1] * length + [0] * (5 - length) for length in lengths])
    expected = torch.stack([LOOPS[mode](list(states[row, :length])) for row, length in enumerate(lengths)])
    torch.testing.assert_close(pool(states, mask, (mode,)), expected)


def test_several_modes_stand_side_by_side():
    states, mask = torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.long)
    assert pool(states, mask, ("mean", "max")).shape == (2, 8)
