"""Batches of rows of similar length, in an order that depends only on the seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from bertkit.errors import RecipeError, UsageError
from bertkit.progress import log
from bertkit.recipe.sections import BaseTrainingConfig, TrainingConfig
from bertkit.tokens.feature_cache import count_labels, get_lengths, get_text_ids, get_used_token_ids
from bertkit.tokens.features import Collator, Feature, Features

SORT_WINDOW = 50
"""Number of batches whose rows are sorted by length together: little padding, and an order that stays random."""

Lengths: TypeAlias = Sequence[int] | np.ndarray
_Batch = TypeVar("_Batch", range, np.ndarray)


@dataclass(frozen=True)
class BatchPartition:
    """Division of a batch among processes, and into micro-batches that a process computes in turn.

    The optimizer sees the same rows in the same step for any number of processes and micro-batches.
    """

    micro_batches: int = 1
    processes: int = 1
    process: int = 0
    """Index of this process."""

    @property
    def count(self) -> int:
        """Number of shares of a batch."""
        return self.micro_batches * self.processes

    def take(self, batch: _Batch, micro_batch: int) -> _Batch:
        """Return this process's share of a batch, a sequence, in a micro-batch.

        A share has every n-th row. The rows of a batch are sorted by length, so all shares get long and short rows.
        """
        return batch[micro_batch * self.processes + self.process :: self.count]


def plan_epoch(
    lengths: Lengths,
    batch_size: int,
    seed: int,
    epoch: int,
    sort_window: int = SORT_WINDOW,
    *,
    items: Lengths | None = None,
    min_rows: int = 1,
) -> list[np.ndarray[Any, Any]]:
    """Plan the row indices of every batch of an epoch; each row occurs once.

    Rows are shuffled, sorted by length inside windows of several batches, split into batches of equally many items (so
    there is no small last batch), and the batches are shuffled. With a sort window of one batch, batches are random.

    Args:
        lengths: Number of tokens per row.
        batch_size: Mean number of rows per batch.
        seed: Seed of the random order.
        epoch: Epoch, which is part of the seed.
        sort_window: Number of batches whose rows are sorted together.
        items: Number of labels per row that the loss is a mean over; 1 by default. If sorted batches had equally many
            rows, batches of short texts would have few labels, and the mean would give these labels too much weight.
        min_rows: Minimum number of rows per batch.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    count = -(-len(lengths) // batch_size)
    sizes = np.asarray(lengths)
    weights = np.ones(len(lengths), dtype=np.int64) if items is None or sort_window == 1 else np.asarray(items)
    planned = []
    # `edges` (batches + 1,) are offsets in `order`, the bounds of batches of nearly equal size. They bound the windows;
    # `_split_evenly` splits a window into batches.
    edges = np.linspace(0, len(order), count + 1).round().astype(int)
    for start in range(0, count, sort_window):
        window = edges[start : start + sort_window + 1]
        rows = order[window[0] : window[-1]]
        # Rows of a window go from short to long, so that a batch needs little padding. The sort is stable, so rows of
        # equal length stay shuffled.
        rows = rows[np.argsort(sizes[rows], kind="stable")]
        planned += np.split(rows, _split_evenly(weights[rows], len(window) - 1, min_rows))
    # The batches of a window go from short to long texts, so batches are shuffled too.
    return [planned[index] for index in random.permutation(len(planned))]


def _split_evenly(weights: np.ndarray[Any, Any], count: int, min_size: int) -> list[int]:
    """Return the indices that split weights, (rows,), into `count` runs of nearly equal sums and at least `min_size`.

    If weights differ, sizes are rounded to four binary digits: oneDNN compiles its matrix products for every shape
    that it meets, so batches of one length should have few sizes.

    >>> _split_evenly(np.array([1, 1, 1, 1, 2, 2, 4]), 3, 1), _split_evenly(np.ones(7), 3, 1)
    ([4, 6], [2, 5])
    >>> _split_evenly(np.repeat([1, 2], [66, 33]), 4, 1)
    [32, 64, 82]
    """
    # `sums` (rows + 1,) are the weights of the first rows, `goals` (count - 1,) the sums at which runs should end. Each
    # run ends where the sum is closest to its goal.
    sums = np.concatenate([[0], np.cumsum(weights)])
    goals = sums[-1] * np.arange(1, count) / count
    differ = weights.min() < weights.max()
    ends = [0]
    for run, goal in enumerate(goals, start=1):
        size = int(np.abs(sums - goal).argmin()) - ends[-1]
        step = 2 ** max(size.bit_length() - 4, 0) if differ else 1
        # The later runs need at least `min_size` rows each.
        latest = len(weights) - (count - run) * min_size
        ends.append(min(ends[-1] + max(round(size / step) * step, min_size), latest))
    return ends[1:]


def plan_batches_without_duplicates(
    texts: Sequence[Sequence[int]], batch_size: int, seed: int, epoch: int, min_rows: int = 1
) -> list[np.ndarray[Any, Any]]:
    """Plan the row indices of every batch of an epoch, in random order; rows of one batch have no text in common.

    There are as many batches as in `plan_epoch`, of nearly the same sizes. A row whose text is already in a batch goes
    to a later batch. The few rows that fit into no batch are left out of this epoch; another epoch leaves out others.

    Args:
        texts: Ids of the texts of each row.
        batch_size: Mean number of rows per batch.
        seed: Seed of the random order.
        epoch: Epoch, which is part of the seed.
        min_rows: Minimum number of rows per batch, even if texts occur twice.
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(texts))
    count = -(-len(texts) // batch_size)
    sizes = np.diff(np.linspace(0, len(texts), count + 1).round().astype(int)).tolist()
    batches: list[list[int]] = [[] for _ in range(count)]
    last: dict[int, int] = {}  # text -> the last batch that has it
    left_out, opened = [], 0  # `opened` is the first batch that has room
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


def choose_batching(batching: str, items: Lengths | None, padding_reason: str | None) -> str:
    """Return ``sorted`` or ``random`` for the recipe's `batching`; the choice for taggers is logged.

    Taggers learn a little more from random batches, which cost no time if padding is not computed.

    Args:
        batching: Value in the recipe.
        items: Number of labels per row, or None if each row has one.
        padding_reason: Reason why the padding of batches is computed, or None if it is not.
    """
    if batching != "auto":
        return batching
    if items is None:
        return "sorted"
    if padding_reason:
        log.info(f"batching: sorted by length, because {padding_reason}")
        return "sorted"
    log.info("batching: random, because padding is not computed")
    return "random"


def longest_rows(lengths: Lengths, count: int) -> list[int]:
    """Return the indices of the longest rows, the longest first.

    >>> longest_rows([3, 9, 4], 2)
    [1, 2]
    """
    rows: list[int] = np.argsort(-np.asarray(lengths), kind="stable")[:count].tolist()
    return rows


@dataclass(eq=False)
class SeededBatches(Sampler[list[int]]):
    """Row indices of one process's share of every batch, micro-batch by micro-batch."""

    lengths: Lengths
    batch_size: int
    seed: int
    sort_window: int = SORT_WINDOW
    items: Lengths | None = None
    texts: Sequence[Sequence[int]] | None = None
    shares: BatchPartition = BatchPartition()
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration plans."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size) * self.shares.micro_batches

    def __iter__(self) -> Iterator[list[int]]:
        # Every process plans the whole epoch from the seed and takes its own share, so processes exchange no plan.
        # `min_rows` keeps every share from being empty.
        order, min_rows = (self.batch_size, self.seed, self.epoch), self.shares.count
        if self.texts is None:
            plan = plan_epoch(self.lengths, *order, self.sort_window, items=self.items, min_rows=min_rows)
        else:
            plan = plan_batches_without_duplicates(self.texts, *order, min_rows=min_rows)
        for batch in plan:
            for micro_batch in range(self.shares.micro_batches):
                yield self.shares.take(batch, micro_batch).tolist()


class SeededLoader(DataLoader[Feature]):
    """A loader that passes the epoch on to its batches and draws nothing from the global random state."""

    def __init__(self, features: Features, batches: SeededBatches, collate: Collator) -> None:
        super().__init__(features, batch_sampler=batches, collate_fn=collate, generator=torch.Generator())  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration runs through."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class InMemoryBatches:
    """Batches of features in memory."""

    def __init__(self, features: Features, training: TrainingConfig) -> None:
        self.features, self.training = features, training
        self.rows, self.budget = len(features), None
        self.lengths, self.items, self.texts = get_lengths(features), count_labels(features), get_text_ids(features)
        self.batching: str = training.batching
        if self.texts is not None:
            # The texts of a batch are each other's negatives. Sorting would choose them by length, not at random.
            if training.batching == "sorted":
                message = "training.batching=sorted does not work with a loss whose negatives are the texts of a batch"
                raise RecipeError(message, "leave it out")
            self.batching = "random"
        self.sampler: SeededBatches

    def __len__(self) -> int:
        return len(self.features)

    def loader(
        self, collate: Collator, *, processes: int, process: int, padding_reason: str | None = None
    ) -> DataLoader[Any]:
        """Build the loader of one process's share, epoch after epoch."""
        training = self.training
        self.batching = choose_batching(self.batching, self.items, padding_reason)
        self.sampler = SeededBatches(
            self.lengths,
            training.batch_size,
            training.seed,
            sort_window=SORT_WINDOW if self.batching == "sorted" else 1,
            items=self.items,
            texts=self.texts,
            shares=BatchPartition(training.gradient_accumulation, processes, process),
        )
        return SeededLoader(self.features, self.sampler, collate)

    def longest(self) -> list[Feature]:
        """Return the longest rows, as many as the batch of an epoch with the most padded tokens has."""
        lengths = np.asarray(self.lengths)
        largest = max(self.sampler, key=lambda rows: len(rows) * lengths[rows].max())
        return [self.features[row] for row in longest_rows(lengths, len(largest))]

    def occurring_tokens(self) -> Iterable[int] | None:
        """Return the token ids of the training rows if only their embeddings are trained, else None."""
        # A custom collator can add other tokens to a batch.
        is_known = self.training.train_used_embeddings_only and not self.training.collator
        return get_used_token_ids(self.features).tolist() if is_known else None

    def step_size(self) -> tuple[float, float]:
        """Return the mean number of rows and of tokens per step."""
        steps = self.training.steps_per_epoch(len(self.lengths))
        return len(self.lengths) / steps, float(self.lengths.sum()) / steps

    def state(self, step: int) -> dict[str, Any]:
        """Return the batching, which another machine could choose differently; the rest follows from the seed."""
        return {"batching": self.batching}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue with the stored batching."""
        self.batching = state.get("batching", self.batching)


def check_batch(training: BaseTrainingConfig, rows: int | None, processes: int) -> None:
    """Check that every batch can be divided evenly; in pretraining, the number of rows is unknown.

    Raises:
        UsageError: If the batch size is not a multiple of processes times micro-batches, or there are too few rows.
    """
    shares = processes * training.gradient_accumulation
    if training.batch_size % shares:
        among = f"{processes} process(es) with {training.gradient_accumulation} micro-batch(es) each"
        message = f"batch_size {training.batch_size} cannot be divided among {among}"
        raise UsageError(message, f"make it a multiple of {shares}")
    if rows is not None and rows // training.steps_per_epoch(rows) < shares:
        message = f"{rows} rows are too few for {shares} shares of a batch"
        raise UsageError(message, "use fewer processes or micro-batches")
