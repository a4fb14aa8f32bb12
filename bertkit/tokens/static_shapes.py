"""Batches of few shapes, for devices that compile a graph for each: of few widths, and filled with rows.

A row that fills a batch counts nothing. It repeats the first one, so that all that a model computes of it is finite.
`ROW_MASK` tells it from others. Where a loss skips labels by their value, its labels are skipped as well.

A run of one task compiles at most 12 graphs. Of a training step there is one per width for the gradients, and two for
the optimizer, whose state the first step makes. An evaluation has one per width, and one for longer texts than training
had. With three widths that is 9, and what begins a run, a log line and a checkpoint has three. Where the gradients of
several micro-batches add up, a width has two graphs, for the first and for all others; so there are two widths, and
4 + 2 + 3 + 3 graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bertkit.tokens.features import IGNORED, ROW_MASK, STATIC_WIDTHS, Collator, Features, Tensors, round_size

if TYPE_CHECKING:
    import numpy as np
    import torch

WIDTHS, WIDTHS_OF_SHARES = 3, 2
"""How many widths batches have, and how many where one step has several micro-batches."""

_CANDIDATES = 64  # widths to choose from
_BEYOND = 2**20  # transformers ignores the ends of answers that are behind the last token
_FILLING: dict[str, float] = {
    "labels": IGNORED,
    "pair_labels": IGNORED,
    "start_positions": _BEYOND,
    "end_positions": _BEYOND,
    "is_text": False,
    "draws": -1.0,
}
"""Name of a tensor -> its values in rows that fill a batch; of others they are those of the first row."""


def choose_widths(lengths: Sequence[int] | np.ndarray, most: int = WIDTHS) -> tuple[int, ...]:
    """Choose the widths, in order and at most so many, to which texts of these lengths are padded with least padding.

    >>> choose_widths([5, 6, 30, 31, 90]), choose_widths([5, 6, 30, 31, 90], 2), choose_widths([12])
    ((8, 32, 96), (32, 96), (16,))
    """
    import numpy as np

    step = max(8, round_size(int(np.max(lengths))) // _CANDIDATES)
    ends = -(-np.asarray(lengths) // step)  # (texts,)
    texts = np.bincount(ends).cumsum()  # end -> texts that are not longer
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}  # end -> cost and ends of the best widths up to there
    for _ in range(most):
        best |= {
            end: min(
                (cost + int(texts[end] - texts[start]) * end, (*before, end))
                for start, (cost, before) in best.items()
                if start < end
            )
            for end in np.unique(ends).tolist()
        }
    return tuple(step * end for end in best[int(ends.max())][1])


def static_collator(collate: Collator, rows: Callable[[Tensors], int] | None, widths: Sequence[int]) -> Collator:
    """Build the collator of batches of few shapes.

    Args:
        collate: builds a batch of any shape.
        rows: returns how many rows a batch is filled to; None for those that it has.
        widths: tokens that a batch has, in order.
    """

    def collate_static(features: Features) -> Tensors:
        token = STATIC_WIDTHS.set(tuple(widths))
        try:
            batch = collate(features)
        finally:
            STATIC_WIDTHS.reset(token)
        return fill_rows(batch, rows(batch)) if rows else batch

    return collate_static


def fill_rows(batch: Tensors, rows: int) -> Tensors:
    """Fill a batch with rows that count nothing, and add its `ROW_MASK`."""
    import torch

    count = len(batch["input_ids"])

    def fill(name: str, values: torch.Tensor) -> torch.Tensor:
        if values.dim() == 0:  # of the whole batch
            return values
        more = values[:1].expand(max(0, rows - count), *values.shape[1:])
        if name in _FILLING:
            # float labels have no value that a loss skips
            is_gold_number = name == "labels" and values.is_floating_point()
            more = torch.full_like(more, 0.0 if is_gold_number else _FILLING[name])
        return torch.cat([values, more])

    filled = {name: fill(name, values) for name, values in batch.items()}
    return {**filled, ROW_MASK: torch.arange(max(rows, count)) < count}


def training_rows(share: int) -> Callable[[Tensors], int]:
    """Return what tells how many rows a training batch is filled to: a multiple of the usual `share`, a micro-batch.

    >>> import torch
    >>> [training_rows(20)({"input_ids": torch.zeros(rows, 1)}) for rows in (20, 18, 5, 30)]
    [20, 20, 20, 40]
    """
    return lambda batch: -(-len(batch["input_ids"]) // share) * share


def evaluation_rows(tokens: int) -> Callable[[Tensors], int]:
    """Return what tells to how many rows a batch is filled: to as many as `tokens` tokens have."""

    def rows(batch: Tensors) -> int:
        shape = batch["input_ids"].shape
        return max(shape[0], tokens // shape[1:].numel())

    return rows
