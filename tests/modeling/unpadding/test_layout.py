"""Where tokens lie without padding: groups that cost least, tokens that get back, and masks of each type of layer."""

from __future__ import annotations

import itertools

import torch

from bertkit.modeling.unpadding.layout import Layout, group_rows

LENGTHS = torch.tensor([3, 12, 5, 1])
MASK = (torch.arange(12) < LENGTHS[:, None]).long()


def test_tokens_come_back_from_their_groups_and_padding_is_zero():
    layout, values = Layout(MASK), torch.randn(4, 12, 6)
    assert torch.equal(layout.pad(layout.unpad(values)), values * MASK[..., None])
    tokens = layout.unpad(values).view(1, -1, 2, 3)  # two heads of width three
    grouped = layout.split(tokens.transpose(1, 2))
    assert [values.shape[0] >= len(group.rows) for values, group in zip(grouped, layout.groups, strict=True)]
    joined = layout.join([values.transpose(1, 2) for values in grouped])
    assert torch.equal(layout.pad(joined.flatten(2)), values * MASK[..., None])


def test_a_group_has_the_heads_of_its_rows_one_after_another():
    lengths, values = torch.tensor([3, 300, 5]), torch.randn(3, 300, 6)
    layout = Layout((torch.arange(300) < lengths[:, None]).long())
    grouped = layout.split(layout.unpad(values).view(1, -1, 2, 3).transpose(1, 2))  # two heads of width three
    assert len(grouped) == 2
    for group, of_group in zip(layout.groups, grouped, strict=True):
        assert of_group.is_contiguous()
        assert of_group.isfinite().all()  # at padding too, which is multiplied by weights of 0
        for row, of_row in zip(group.rows, of_group, strict=False):
            expected = values[row, : lengths[row]].unflatten(1, (2, 3)).transpose(0, 1)
            assert torch.equal(of_row[:, : lengths[row]], expected)


def test_positions_of_one_row_stand_for_all():
    layout, positions = Layout(MASK), torch.arange(12.0)[None, :, None]
    expected = layout.unpad(positions.expand(4, 12, 1))
    assert torch.equal(layout.unpad_positions(positions), expected)
    assert layout.unpad_positions(positions) is layout.unpad_positions(positions)


def test_a_group_keeps_the_window_of_its_layer():
    near = (torch.arange(12)[:, None] - torch.arange(12)).abs() <= 2
    attended = near & MASK[:, None, None, :].bool()
    (group,) = Layout(MASK).groups
    mask = group.mask(attended)
    assert group.rows.tolist() == [3, 0, 2, 1]
    assert mask.shape == (4, 1, 16, 16)
    assert torch.equal(mask[3, 0, :12, :12], near)
    assert mask[1, 0, 1].nonzero()[:, 0].tolist() == [0, 1, 2]
    assert mask.any(dim=-1).all()  # what is no token attends to something, too


def test_groups_hold_every_row_and_cost_least():
    lengths = sorted([7, 7, 8, 100, 101, 104, 300, 310])

    def cost(ends: tuple[int, ...]) -> int:
        return sum((end - start) * lengths[end - 1] ** 2 + 20_000 for start, end in itertools.pairwise((0, *ends, 8)))

    every = [ends for count in range(8) for ends in itertools.combinations(range(1, 8), count)]
    best = min(every, key=cost)
    assert group_rows(lengths) == list(itertools.pairwise((0, *best, 8)))
    assert len(best) == 2
