"""Batches of few shapes, for devices that compile a graph per shape: few widths, and filling texts and rows.

A filling row does not count. It repeats the first row, so that everything that a model computes from it is finite.
`ROW_MASK` marks it. If a loss skips labels by their value, it skips the labels of filling rows as well.

A run compiles at most 12 graphs. A training step has one graph per width for the gradients, another one for the first
step, and two for the optimizer, whose state is created in the first step. An evaluation has one graph per width, and
one for texts that are longer than in training. With three widths, these are 10 graphs. A log line has one graph, and
several devices need one more to load the best weights. If a step adds up the gradients of several micro-batches, each
width has two graphs, for the first micro-batch and for the others; so there are only two widths, and 5 + 2 + 3 + 1 + 1
graphs.

Rows of several texts, such as choices, all have as many texts as the longest row. If texts are windows, only the
windows of a row are computed, in micro-batches of as many windows as they have rows, or as one row can have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bertkit.tokens.features import (
    IGNORE_INDEX,
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

MAX_WIDTHS, MAX_WIDTHS_MICRO_BATCHES, MAX_WIDTHS_CUDA_GRAPHS = 3, 2, 8
"""Maximum number of widths: in general, with several micro-batches per step, and with CUDA graphs."""

_CANDIDATES = 64  # widths to choose from
_BEYOND = 2**20  # transformers ignores answers that end after the last token.
_FILLING: dict[str, float] = {
    "labels": IGNORE_INDEX,
    "pair_labels": IGNORE_INDEX,
    "start_positions": _BEYOND,
    "end_positions": _BEYOND,
    "is_text": False,
    "draws": -1.0,
}
"""Name of a tensor -> its value in filling rows; other tensors repeat the first row."""

Order = list[int]
"""Rows of a filled batch: indices of rows of the original batch, or -1 for filling rows."""


class Texts(NamedTuple):
    """Maximum number of texts per row, and whether they are windows of one text."""

    max_count: int = 1
    are_windows: bool = False


ONE_TEXT = Texts()


def choose_widths(lengths: Sequence[int] | np.ndarray, max_widths: int = MAX_WIDTHS) -> tuple[int, ...]:
    """Choose the widths, in order, with the smallest total padding for texts of these lengths.

    >>> choose_widths([5, 6, 30, 31, 90]), choose_widths([5, 6, 30, 31, 90], 2), choose_widths([12])
    ((8, 32, 96), (32, 96), (16,))
    """
    import numpy as np

    step = max(8, round_size(int(np.max(lengths))) // _CANDIDATES)
    ends = -(-np.asarray(lengths) // step)  # (texts,)
    texts = np.bincount(ends).cumsum()  # end -> number of texts that are not longer
    # In the first example, the step is 8, `ends` is [1, 1, 4, 4, 12], and at most 2 texts end by 1, 4 by 4, 5 by 12.
    # The widths 1, 4 and 12 (in steps) cost 2 * 1 + 2 * 4 + 1 * 12 = 22; with two, 4 and 12 cost 4 * 4 + 1 * 12 = 28.
    # This is dynamic programming: each round allows one more width, and extends the best choice up to a smaller end.
    # `best` maps an end to the cost and the ends of the best widths up to it.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for _ in range(max_widths):
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
        collate: Function that builds a batch of any shape.
        order: Function that returns the rows of a filled batch, or None to add no rows.
        widths: Widths of batches in tokens, in order.
        texts: Texts per row.
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
    """Add missing texts to the rows of a batch, as single tokens like in `multi_text_collator`."""
    from torch.nn.functional import pad

    present = batch["input_ids"].shape[1]
    missing = max(0, texts.max_count - present)
    padded = {name: pad(values, (0, 0, 0, missing)) if values.dim() == 3 else values for name, values in batch.items()}
    padded["attention_mask"][:, present:, 0] = 1
    # Labels (rows, texts) have a value per text, so they grow with the texts.
    if "labels" in batch and batch["labels"].dim() == 2 and not texts.are_windows:
        padded["labels"] = pad(batch["labels"], (0, missing))
    return padded


def fill_rows(batch: Tensors, order: Order) -> Tensors:
    """Add filling rows to a batch, and its `ROW_MASK`."""
    import torch

    # The order [0, 1, -1] keeps two rows and fills a third with a copy of row 0, whose labels are replaced.
    rows = torch.tensor(order)
    is_row = rows >= 0

    def fill(name: str, values: Tensor) -> Tensor:
        if values.dim() == 0:  # A scalar belongs to the batch, not to a row.
            return values
        row_values = values[rows.clamp(min=0)]
        if name in _FILLING:
            # Float labels have no value that a loss skips.
            is_gold_number = name == "labels" and values.is_floating_point()
            row_values[~is_row] = 0.0 if is_gold_number else _FILLING[name]
        return row_values

    return {**{name: fill(name, values) for name, values in batch.items()}, ROW_MASK: is_row}


def training_rows(share: int, texts: Texts = ONE_TEXT) -> Callable[[Tensors], Order]:
    """Return a function that fills each micro-batch of a training batch to the usual `share` of rows.

    If rows have windows, a micro-batch has at most as many windows as it has rows, or as one row can have.

    >>> import torch
    >>> [len(training_rows(20)({"input_ids": torch.zeros(rows, 1)})) for rows in (20, 18, 5, 30)]
    [20, 20, 20, 40]
    >>> windows = torch.tensor([[[1, 1], [1, 1]], [[1, 1], [1, 0]], [[1, 1], [1, 1]]])
    >>> training_rows(3, Texts(2, are_windows=True))({"input_ids": windows, "attention_mask": windows})
    [0, 1, -1, 2, -1, -1]
    """
    max_windows = max(share, texts.max_count)

    def order(batch: Tensors) -> Order:
        sizes = [max_windows] * len(batch["input_ids"])  # in windows, times `share`
        if texts.are_windows and batch["input_ids"].dim() == 3:
            windows = (batch["attention_mask"].sum(dim=-1) > 1).sum(dim=-1)
            sizes = (windows * share).clamp(min=max_windows).tolist()
        blocks = split_by_size(range(len(sizes)), max_windows * share, sizes.__getitem__)
        return [row for block in blocks for row in [*block, *[-1] * (share - len(block))]]

    return order


def evaluation_rows(tokens: int, texts: Texts = ONE_TEXT, devices: int = 1) -> Callable[[Tensors], Order]:
    """Return a function that fills a batch to `tokens` tokens, with the same number of rows per device."""

    def order(batch: Tensors) -> Order:
        shape = batch["input_ids"].shape
        rows = max(shape[0], tokens // (shape[-1] if texts.are_windows else shape[1:].numel()))
        return [*range(shape[0]), *[-1] * (-(-rows // devices) * devices - shape[0])]

    return order
