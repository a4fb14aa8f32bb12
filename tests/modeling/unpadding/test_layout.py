"""Packed batches: tokens come back to their positions, with zeros as padding, and so do gradients."""

from __future__ import annotations

import pytest
import torch

from bertkit.modeling.unpadding.layout import PackedBatch

LENGTHS = torch.tensor([3, 12, 5, 0, 1])
MASK = (torch.arange(12) < LENGTHS[:, None]).long()


@pytest.mark.parametrize(("sort_rows", "multiple_of", "size"), [(False, 1, 21), (True, 32, 32)])
def test_tokens_come_back_and_padding_is_zero(sort_rows, multiple_of, size):
    packed, values = PackedBatch(MASK, sort_rows=sort_rows, multiple_of=multiple_of), torch.randn(5, 12, 6)
    tokens = packed.unpad(values)
    assert tokens.shape == (size, 6)
    assert not tokens[21:].any()
    assert torch.equal(packed.pad(tokens), values * MASK[..., None])


@pytest.mark.parametrize("sort_rows", [False, True])
def test_rows_are_between_the_cumulative_lengths(sort_rows):
    packed, values = PackedBatch(MASK, sort_rows=sort_rows, multiple_of=32), torch.randn(5, 12, 6)
    tokens = packed.unpad(values)
    assert packed.max_seqlen == 12
    assert packed.cu_seqlens.dtype == torch.int32
    for index, row in enumerate(packed.order):
        start, end = packed.cu_seqlens[index : index + 2]
        assert torch.equal(tokens[start:end], values[row, : LENGTHS[row]])


def test_gradients_reach_real_tokens_only():
    packed, values = PackedBatch(MASK, multiple_of=32), torch.randn(5, 12, 6, requires_grad=True)
    weights = torch.randn(5, 12, 6)
    (packed.pad(packed.unpad(values) * 2) * weights).sum().backward()
    assert torch.equal(values.grad, 2 * weights * MASK[..., None])


def test_values_of_all_layers_are_computed_once():
    packed, source, calls = PackedBatch(MASK), torch.ones(1), []
    for _ in range(2):
        assert packed.compute_once(source, lambda: calls.append(1) or "value") == "value"
    assert len(calls) == 1
