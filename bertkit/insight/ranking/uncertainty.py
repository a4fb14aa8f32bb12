"""How sure the order of encoders is: intervals of their scores, and of the differences between neighbors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bertkit.metrics import Numbers

BLOCKS = 20
LEVEL = 0.95


def deal_blocks(rows: Numbers, blocks: int = BLOCKS, seed: int = 0) -> Numbers:
    """Deal rows out to blocks of equal size at random, and return the block of each example.

    Args:
        rows: the row that each example belongs to, (examples,); examples of one row stay together.
        blocks: how many; fewer where there are fewer rows.
        seed: of the dealing.
    """
    # Whole rows: words of one sentence in two blocks would make blocks alike, and intervals too narrow.
    names, numbers = np.unique(rows, return_inverse=True)
    dealt = np.random.default_rng(seed).permutation(len(names)) % min(blocks, len(names))
    return np.asarray(dealt[numbers])


def leave_blocks_out(score: Callable[[Numbers], float], blocks: Numbers) -> Numbers:
    """Compute the score without each block: (blocks,).

    Resampling rows with repetition would not do here: a row that is there twice can be learnt from itself, so scores of
    linear models of many dimensions would all rise.

    Args:
        score: computes the score of the examples where a mask, (examples,), is true.
        blocks: of each example, from 0.
    """
    return np.array([score(blocks != block) for block in range(int(blocks.max()) + 1)])


def interval_of(score: float, left_out: Numbers) -> tuple[float, float]:
    """Compute the 95% interval of a score from its values without each block (the jackknife; Tukey 1958).

    Of two models, the difference of their scores has an interval too, for which `left_out` is that of the values; since
    both are without the same rows, what these rows do to both of them cancels.
    """
    from scipy.stats import t

    count = len(left_out)
    error = float(np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum()))
    reach = float(t.ppf((1 + LEVEL) / 2, count - 1)) * error
    return score - reach, score + reach


def are_alike(scores: tuple[float, float], left_out: tuple[Numbers, Numbers]) -> bool:
    """Tell whether the interval of the difference of two scores on the same rows holds 0."""
    low, high = interval_of(scores[0] - scores[1], left_out[0] - left_out[1])
    return low <= 0 <= high
