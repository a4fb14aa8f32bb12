"""Intervals from blocks that are left out, compared with a formula, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.insight.ranking.uncertainty import are_alike, deal_blocks, interval_of, leave_blocks_out


def test_blocks_are_of_equal_size_and_keep_a_row_together():
    rows = np.repeat(np.arange(100), 3)
    blocks = deal_blocks(rows)
    assert np.bincount(blocks).tolist() == [15] * 20
    assert all(len(set(blocks[rows == row])) == 1 for row in range(100))
    assert deal_blocks(rows).tolist() == blocks.tolist() != deal_blocks(rows, seed=1).tolist()
    assert deal_blocks(np.arange(7)).max() == 6


def test_the_interval_of_a_mean_is_that_of_the_means_of_blocks():
    values = np.random.default_rng(1).normal(size=200)
    blocks = deal_blocks(np.arange(200))
    low, high = interval_of(values.mean(), leave_blocks_out(lambda kept: values[kept].mean(), blocks))
    means = np.array([values[blocks == block].mean() for block in range(20)])
    reach = 2.093 * means.std(ddof=1) / np.sqrt(20)  # t of 19 degrees of freedom
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=1e-3)


def test_equal_means_are_told_apart_in_one_of_twenty_draws():
    random = np.random.default_rng(2)
    blocks = deal_blocks(np.arange(100))
    apart, differing = 0, 0
    for _ in range(400):
        shared = random.normal(size=100)
        sides = [shared + 0.1 * random.normal(size=100) for _ in range(2)]
        left_out = [leave_blocks_out(lambda kept, side=side: side[kept].mean(), blocks) for side in sides]
        apart += not are_alike((sides[0].mean(), sides[1].mean()), (left_out[0], left_out[1]))
        differing += not are_alike((sides[0].mean() + 0.1, sides[1].mean()), (left_out[0] + 0.1, left_out[1]))
    assert 6 <= apart <= 36  # 20 expected
    assert differing == 400  # what rows do to both cancels: each mean alone has an interval of twice this
