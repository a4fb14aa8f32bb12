"""Batches of few shapes, for devices that compile a graph for each: of few widths, filled with texts and with rows.

A row that fills a batch counts nothing. It repeats the first one, so that all that a model computes of it is finite.
`ROW_MASK` tells it from others. Where a loss skips labels by their value, its labels are skipped as well.

A run of one task compiles at most 12 graphs. Of a training step there is one per width for the gradients, one more for
the first of all, and two for the optimizer, whose state the first step makes. An evaluation has one per width, and one
for longer texts than training had. With three widths that is 10. A log line has one, and so have the best weights that
several devices load in the end. Where the gradients of several micro-batches add up, a width has two graphs, for the
first and for all others; so there are two widths, and 5 + 2 + 3 + 1 + 1 graphs.

Rows of several texts, such as choices, all have as many as the row with the most. Where these are windows of one text,
only those that a row has are computed: micro-batches of as many windows as they have rows, or as one row may have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bertkit.tokens.features import (
    IGNORED,
    ROW_MASK,
    STATIC_WIDTHS,
    Collator,
    Features,
    Tensor,
    Tensors,
    round_size,
    split_by_size,
)

if TYPE_CHECKING:
    import numpy as np

WIDTHS, WIDTHS_OF_SHARES, WIDTHS_OF_GRAPHS = 3, 2, 8
"""How many widths batches have, how many where one step has several micro-batches, and how many with CUDA graphs."""

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

Order = list[int]
"""The rows of a filled batch: numbers of rows of the batch before, -1 for one that only fills it."""


class Texts(NamedTuple):
    """The texts of each row of a batch: how many, and whether they are windows of one text."""

    most: int = 1
    are_windows: bool = False


ONE_TEXT = Texts()


def choose_widths(lengths: Sequence[int] | np.ndarray, most: int = WIDTHS) -> tuple[int, ...]:
    """Choose the widths, in order and at most so many, to which texts of these lengths are padded with least padding.

    >>> choose_widths([5, 6, 30, 31, 90]), choose_widths([5, 6, 30, 31, 90], 2), choose_widths([12])
    ((8, 32, 96), (32, 96), (16,))
    """
    import numpy as np

    step = max(8, round_size(int(np.max(lengths))) // _CANDIDATES)
    ends = -(-np.asarray(lengths) // step)  # (texts,)
    texts = np.bincount(ends).cumsum()  # end -> texts that are not longer
    # end -> cost and ends of the best widths up to there
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
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


def static_collator(
    collate: Collator, order: Callable[[Tensors], Order] | None, widths: Sequence[int], texts: Texts = ONE_TEXT
) -> Collator:
    """Build the collator of batches of few shapes.

    Args:
        collate: builds a batch of any shape.
        order: returns the rows of a filled batch; None for those that it has.
        widths: tokens that a batch has, in order.
        texts: of each row.
    """

    def collate_static(features: Features) -> Tensors:
        token = STATIC_WIDTHS.set(tuple(widths))
        try:
            batch = collate(features)
        finally:
            STATIC_WIDTHS.reset(token)
        batch = _fill_texts(batch, texts) if batch["input_ids"].dim() == 3 else batch
        return fill_rows(batch, order(batch)) if order else batch

    return collate_static


def _fill_texts(batch: Tensors, texts: Texts) -> Tensors:
    """Add to the rows of a batch the texts that they lack, each a single token as that of `several_collator`."""
    from torch.nn.functional import pad

    present = batch["input_ids"].shape[1]
    lacking = max(0, texts.most - present)
    filled = {name: pad(values, (0, 0, 0, lacking)) if values.dim() == 3 else values for name, values in batch.items()}
    filled["attention_mask"][:, present:, 0] = 1
    # one per text, or nearly
    if "labels" in batch and batch["labels"].dim() == 2 and not texts.are_windows:
        filled["labels"] = pad(batch["labels"], (0, lacking))
    return filled


def fill_rows(batch: Tensors, order: Order) -> Tensors:
    """Fill a batch with rows that count nothing, and add its `ROW_MASK`."""
    import torch

    rows = torch.tensor(order)
    is_row = rows >= 0

    def fill(name: str, values: Tensor) -> Tensor:
        if values.dim() == 0:  # of the whole batch
            return values
        filled = values[rows.clamp(min=0)]
        if name in _FILLING:
            # float labels have no value that a loss skips
            is_gold_number = name == "labels" and values.is_floating_point()
            filled[~is_row] = 0.0 if is_gold_number else _FILLING[name]
        return filled

    return {**{name: fill(name, values) for name, values in batch.items()}, ROW_MASK: is_row}


def training_rows(share: int, texts: Texts = ONE_TEXT) -> Callable[[Tensors], Order]:
    """Return what fills the micro-batches of a training batch, each to the usual `share` of rows.

    Where rows have windows, a micro-batch has at most as many of them as it has rows, or as one row may have.

    >>> import torch
    >>> [len(training_rows(20)({"input_ids": torch.zeros(rows, 1)})) for rows in (20, 18, 5, 30)]
    [20, 20, 20, 40]
    >>> windows = torch.tensor([[[1, 1], [1, 1]], [[1, 1], [1, 0]], [[1, 1], [1, 1]]])
    >>> training_rows(3, Texts(2, are_windows=True))({"input_ids": windows, "attention_mask": windows})
    [0, 1, -1, 2, -1, -1]
    """
    most = max(share, texts.most)

    def order(batch: Tensors) -> Order:
        sizes = [most] * len(batch["input_ids"])  # in windows, times the share of rows
        if texts.are_windows and batch["input_ids"].dim() == 3:
            windows = (batch["attention_mask"].sum(dim=-1) > 1).sum(dim=-1)
            sizes = (windows * share).clamp(min=most).tolist()
        blocks = split_by_size(range(len(sizes)), most * share, sizes.__getitem__)
        return [row for block in blocks for row in [*block, *[-1] * (share - len(block))]]

    return order


def evaluation_rows(tokens: int, texts: Texts = ONE_TEXT, devices: int = 1) -> Callable[[Tensors], Order]:
    """Return what fills a batch to as many rows, or windows, as so many tokens have, in equal shares of the devices."""

    def order(batch: Tensors) -> Order:
        shape = batch["input_ids"].shape
        rows = max(shape[0], tokens // (shape[-1] if texts.are_windows else shape[1:].numel()))
        return [*range(shape[0]), *[-1] * (-(-rows // devices) * devices - shape[0])]

    return order
