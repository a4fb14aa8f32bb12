"""Batches in which no text occurs twice, for losses that take the other texts of a batch for negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertkit.errors import RecipeError

Numbers = np.ndarray[Any, Any]


def plan_distinct(
    texts: Sequence[Sequence[int]], batch_size: int, seed: int, epoch: int, min_rows: int = 1
) -> list[Numbers]:
    """Plan the row numbers of every batch of an epoch, in random order; rows of one batch have no text in common.

    Batches are as many, and nearly as large, as those of `bertkit.training.batching.plan_epoch`. A row whose text is in
    a batch goes to a later one. The few that find none at the end are left out of this epoch; another epoch leaves out
    others.

    Args:
        texts: numbers of the texts of each row.
        batch_size: rows of a batch, on average.
        seed: of the order.
        epoch: of the order.
        min_rows: rows that every batch has at least, even if texts occur twice.
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(texts))
    count = -(-len(texts) // batch_size)
    sizes = np.diff(np.linspace(0, len(texts), count + 1).round().astype(int)).tolist()
    batches: list[list[int]] = [[] for _ in range(count)]
    last: dict[int, int] = {}  # text -> the last batch that has it
    left_out, opened = [], 0
    for row in order.tolist():
        while opened < count and len(batches[opened]) == sizes[opened]:
            opened += 1
        batch = max([opened, *(last[text] + 1 for text in texts[row] if text in last)])
        while batch < count and len(batches[batch]) == sizes[batch]:
            batch += 1
        if batch == count:
            left_out.append(row)
            continue
        batches[batch].append(row)
        last.update(dict.fromkeys(texts[row], batch))
    for rows in batches:
        while len(rows) < min_rows and left_out:
            rows.append(left_out.pop())
    return [np.array(rows) for rows in batches]


def random_only(batching: str) -> str:
    """Return ``random``, since negatives as long as the positive would be told by nothing but their length.

    Raises:
        RecipeError: the recipe asks for sorted batches.
    """
    if batching == "sorted":
        what = "training.batching = sorted does not go with a loss that takes the other texts of a batch for negatives"
        raise RecipeError(what, "leave it out")
    return "random"
