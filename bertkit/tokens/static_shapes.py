"""Batches of few shapes, for devices that compile a graph for each: of few lengths, and filled with rows.

A row that fills a batch counts nothing. It repeats the first one, so that all that a model computes of it is finite.
`ROW_MASK` tells it from others. Where a loss skips labels by their value, its labels are skipped as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bertkit.tokens.features import IGNORED, ROW_MASK, STATIC_LIMIT, Collator, Features, Tensors, round_size

if TYPE_CHECKING:
    import torch

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


def static_collator(collate: Collator, rows: Callable[[Tensors], int] | None, most: int) -> Collator:
    """Build the collator of batches of few shapes.

    Args:
        collate: builds a batch of any shape.
        rows: returns how many rows a batch is filled to; None for those that it has.
        most: tokens of the longest text.
    """

    def collate_static(features: Features) -> Tensors:
        token = STATIC_LIMIT.set(most)
        try:
            batch = collate(features)
        finally:
            STATIC_LIMIT.reset(token)
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
    """Return what tells how many rows a training batch is filled to: the usual `share`, or a rounded number.

    >>> import torch
    >>> [training_rows(20)({"input_ids": torch.zeros(rows, 1)}) for rows in (20, 18, 5, 30)]
    [20, 20, 8, 32]
    """

    def rows(batch: Tensors) -> int:
        count = len(batch["input_ids"])
        return min(size for size in (round_size(count), share) if size >= count)

    return rows


def evaluation_rows(tokens: int) -> Callable[[Tensors], int]:
    """Return what tells to how many rows a batch is filled: to a power of two, but to no more than `tokens` tokens."""

    def rows(batch: Tensors) -> int:
        shape = batch["input_ids"].shape
        size: int = 1 << (shape[0] - 1).bit_length()
        return max(shape[0], min(size, tokens // shape[1:].numel()))

    return rows
