"""Attention without padding: cheapest groups, tokens that come back, masks of layer types, and equal lengths."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional

from bertkit.modeling.unpadding.attend import EqualLengthAttention, GroupedAttention, attend_in_blocks, group_rows

LENGTHS = torch.tensor([3, 12, 5, 1])
MASK = (torch.arange(12) < LENGTHS[:, None]).long()


def make_grouped(mask: torch.Tensor) -> GroupedAttention:
    return GroupedAttention(mask, lambda *_, **__: None)


def test_tokens_come_back_from_their_groups():
    attention, values = make_grouped(MASK), torch.randn(4, 12, 6)
    tokens = attention.packed.unpad(values).view(1, -1, 2, 3)  # two heads of width three
    grouped = attention.split(tokens.transpose(1, 2))
    assert [values.shape[0] >= len(group.rows) for values, group in zip(grouped, attention.groups, strict=True)]
    joined = attention.join([values.transpose(1, 2) for values in grouped])
    assert torch.equal(attention.packed.pad(joined.flatten(2)[0]), values * MASK[..., None])


def test_a_group_has_the_heads_of_its_rows_one_after_another():
    lengths, values = torch.tensor([3, 300, 5]), torch.randn(3, 300, 6)
    attention = make_grouped((torch.arange(300) < lengths[:, None]).long())
    tokens = attention.packed.unpad(values).view(1, -1, 2, 3)  # two heads of width three
    grouped = attention.split(tokens.transpose(1, 2))
    assert len(grouped) == 2
    for group, group_values in zip(attention.groups, grouped, strict=True):
        assert group_values.is_contiguous()
        assert group_values.isfinite().all()  # at padding too, which is multiplied by weights of 0
        for row, row_values in zip(group.rows, group_values, strict=False):
            expected = values[row, : lengths[row]].unflatten(1, (2, 3)).transpose(0, 1)
            assert torch.equal(row_values[:, : lengths[row]], expected)


def test_a_group_keeps_the_window_of_its_layer():
    near = (torch.arange(12)[:, None] - torch.arange(12)).abs() <= 2
    attended = near & MASK[:, None, None, :].bool()
    (group,) = make_grouped(MASK).groups
    mask = group.cut_mask(attended)
    assert group.rows.tolist() == [3, 0, 2, 1]
    assert mask.shape == (4, 1, 16, 16)
    assert torch.equal(mask[3, 0, :12, :12], near)
    assert mask[1, 0, 1].nonzero()[:, 0].tolist() == [0, 1, 2]
    assert mask.any(dim=-1).all()  # padding attends to something, too


def test_groups_hold_every_row_and_cost_least():
    lengths = sorted([7, 7, 8, 100, 101, 104, 300, 310])

    def cost(ends: tuple[int, ...]) -> int:
        return sum((end - start) * lengths[end - 1] ** 2 + 20_000 for start, end in itertools.pairwise((0, *ends, 8)))

    every = [ends for count in range(8) for ends in itertools.combinations(range(1, 8), count)]
    best = min(every, key=cost)
    assert group_rows(lengths) == list(itertools.pairwise((0, *best, 8)))
    assert len(best) == 2


@pytest.mark.parametrize("tokens", [1, 13, 16, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_one_length_attend_as_in_torch(tokens, dtype):
    projected = torch.randn(70, tokens, 3, 2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    queries, keys, values = projected.float().permute(2, 0, 3, 1, 4)
    expected = functional.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).reshape(-1, 16)
    tolerance = 1e-6 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(
        attend_in_blocks(projected[:, :, 0], projected[:, :, 1:]).float(), expected, rtol=0, atol=tolerance
    )


def test_products_of_any_number_of_texts_have_the_same_shapes(monkeypatch):
    """oneDNN never frees what it has compiled for a shape, so memory would grow with the rows."""
    shapes, multiply = set(), torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda first, second: shapes.add(first.shape) or multiply(first, second))
    for texts in range(20, 120):
        attend_in_blocks(torch.randn(texts, 13, 2, 8).bfloat16(), torch.randn(texts, 13, 2, 2, 8).bfloat16())
    assert len(shapes) == 2  # scores, and the sums of values


@pytest.mark.parametrize("first_only", [False, True])
def test_each_row_attends_to_its_own_tokens(first_only):
    lengths = torch.tensor([2, 2, 5, 0, 2])
    attention = EqualLengthAttention((torch.arange(5) < lengths[:, None]).long())
    assert attention.runs == [(2, 2), (1, 5), (1, 0), (1, 2)]
    projected = torch.randn(attention.packed.size, 3, 2, 8)
    queries = attention.take_first(projected[:, 0]) if first_only else projected[:, 0]
    attended = attention.attend(queries, projected[:, 1:], first_only=first_only)
    assert attended.shape == (len(queries), 16)
    for row, (start, end) in enumerate(itertools.pairwise(attention.packed.cu_seqlens.tolist())):
        query, key, value = projected[start:end].permute(1, 2, 0, 3)
        expected = functional.scaled_dot_product_attention(query, key, value).transpose(0, 1).flatten(1)
        computed = attended[row : row + 1] if first_only else attended[start:end]
        if start < end:
            torch.testing.assert_close(computed, expected[:1] if first_only else expected)
