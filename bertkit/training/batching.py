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
"""Number of batches whose rows are sorted by length together: enough for little padding and a random order."""

Lengths: TypeAlias = Sequence[int] | np.ndarray
_Batch = TypeVar("_Batch", range, np.ndarray)


@dataclass(frozen=True)
class BatchPartition:
    """Division of a batch among processes, and into micro-batches that each process computes one by one.

    For any number of processes and micro-batches, the optimizer sees the same rows in the same step.
    """

    micro_batches: int = 1
    processes: int = 1
    process: int = 0
    """Index of this process."""

    @property
    def count(self) -> int:
        """Number of shares of a batch."""
        return self.micro_batches * self.processes

    def select_rows(self, batch: _Batch, micro_batch: int) -> _Batch:
        """Return the rows of a batch that this process computes in a micro-batch.

        A share has every n-th row. The rows of a batch are sorted by length, so each share gets long and short rows.
        """
        return batch[micro_batch * self.processes + self.process :: self.count]


def plan_epoch(
    lengths: Lengths,
    batch_size: int,
    seed: int,
    epoch: int,
    bucket_size: int = SORT_WINDOW,
    *,
    items: Lengths | None = None,
    min_rows: int = 1,
) -> list[np.ndarray]:
    """Plan the row indices of every batch of an epoch; each row occurs once.

    Rows are shuffled, sorted by length inside windows of several batches, and split into batches with equal numbers of
    items (so no last batch is small); then the batches are shuffled. With a window of one batch, batches are random.

    Args:
        lengths: Number of tokens per row.
        batch_size: Mean number of rows per batch.
        seed: Seed of the random order.
        epoch: Epoch, which is part of the seed.
        bucket_size: Number of batches whose rows are sorted together.
        items: Number of labels per row that the loss is a mean over; 1 by default. If sorted batches had equal numbers
            of rows, batches of short texts would have few labels, and the mean would give these labels too much weight.
        min_rows: Minimum number of rows per batch.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    count = -(-len(lengths) // batch_size)
    sizes = np.asarray(lengths)
    weights = np.ones(len(lengths), dtype=np.int64) if items is None or bucket_size == 1 else np.asarray(items)
    batches = []
    # `edges`, of shape (batches + 1,), would split `order` into batches of nearly equal numbers of rows. Here they only
    # bound the windows; `_split_evenly` splits a window into batches.
    edges = np.linspace(0, len(order), count + 1).round().astype(int)
    for start in range(0, count, bucket_size):
        window = edges[start : start + bucket_size + 1]
        rows = order[window[0] : window[-1]]
        # Sort the rows of a window by length, so that batches need little padding. The sort is stable, so rows of equal
        # length stay shuffled.
        rows = rows[np.argsort(sizes[rows], kind="stable")]
        batches += np.split(rows, _split_evenly(weights[rows], len(window) - 1, min_rows))
    # The batches of a window are in order of length, so shuffle them too.
    return [batches[index] for index in random.permutation(len(batches))]


def _split_evenly(weights: np.ndarray, count: int, min_size: int) -> list[int]:
    """Return the indices that split `weights` into `count` groups of nearly equal sums and at least `min_size` rows.

    If weights differ, group sizes are rounded to four binary digits: oneDNN compiles a matrix product for every new
    shape, so batches of the same length should have few different sizes.

    >>> _split_evenly(np.array([1, 1, 1, 1, 2, 2, 4]), 3, 1), _split_evenly(np.ones(7), 3, 1)
    ([4, 6], [2, 5])
    >>> _split_evenly(np.repeat([1, 2], [66, 33]), 4, 1)
    [32, 64, 82]
    """
    # `sums`, of shape (rows + 1,), are cumulative weights; `goals`, of shape (count - 1,), are the sums at which groups
    # should end. Each group ends at the sum that is closest to its goal.
    sums = np.concatenate([[0], np.cumsum(weights)])
    goals = sums[-1] * np.arange(1, count) / count
    are_unequal = weights.min() < weights.max()
    ends = [0]
    for group, goal in enumerate(goals, start=1):
        size = int(np.abs(sums - goal).argmin()) - ends[-1]
        unit = 2 ** max(size.bit_length() - 4, 0) if are_unequal else 1
        # Each later group needs at least `min_size` rows.
        last_end = len(weights) - (count - group) * min_size
        ends.append(min(ends[-1] + max(round(size / unit) * unit, min_size), last_end))
    return ends[1:]


def plan_batches_without_duplicates(
    texts: Sequence[Sequence[int]], batch_size: int, seed: int, epoch: int, min_rows: int = 1
) -> list[np.ndarray]:
    """Plan the row indices of every batch of an epoch, in random order; rows of one batch have no text in common.

    The batches have nearly the same number and sizes as in `plan_epoch`. A row with a text that is already in a batch
    goes to a later batch. The few rows that fit into no batch are skipped in this epoch; another epoch skips others.

    Args:
        texts: Ids of the texts of each row.
        batch_size: Mean number of rows per batch.
        seed: Seed of the random order.
        epoch: Epoch, which is part of the seed.
        min_rows: Minimum number of rows per batch, even if a text then occurs twice in a batch.
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(texts))
    count = -(-len(texts) // batch_size)
    sizes = np.diff(np.linspace(0, len(texts), count + 1).round().astype(int)).tolist()
    batches: list[list[int]] = [[] for _ in range(count)]
    last_batches: dict[int, int] = {}  # text -> last batch with the text
    skipped_rows, first_open = [], 0  # `first_open`: first batch with room
    for row in order.tolist():
        while first_open < count and len(batches[first_open]) == sizes[first_open]:
            first_open += 1
        batch = max([first_open, *(last_batches[text] + 1 for text in texts[row] if text in last_batches)])
        while batch < count and len(batches[batch]) == sizes[batch]:
            batch += 1
        if batch == count:
            skipped_rows.append(row)
            continue
        batches[batch].append(row)
        last_batches.update(dict.fromkeys(texts[row], batch))
    for rows in batches:
        while len(rows) < min_rows and skipped_rows:
            rows.append(skipped_rows.pop())
    return [np.array(rows) for rows in batches]


def choose_batching(batching: str, items: Lengths | None, padding_reason: str | None) -> str:
    """Return ``sorted`` or ``random`` for the recipe's `batching`; the choice for taggers is logged.

    Taggers learn slightly more from random batches, which are as fast as sorted ones if padding is not computed.

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
    """Row indices of each micro-batch of one process."""

    lengths: Lengths
    batch_size: int
    seed: int
    bucket_size: int = SORT_WINDOW
    items: Lengths | None = None
    texts: Sequence[Sequence[int]] | None = None
    partition: BatchPartition = BatchPartition()
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration plans."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size) * self.partition.micro_batches

    def __iter__(self) -> Iterator[list[int]]:
        # Every process plans the complete epoch from the seed and selects its rows, so processes exchange no plan.
        # With `min_rows`, no share of a batch is empty.
        order, min_rows = (self.batch_size, self.seed, self.epoch), self.partition.count
        if self.texts is None:
            plan = plan_epoch(self.lengths, *order, self.bucket_size, items=self.items, min_rows=min_rows)
        else:
            plan = plan_batches_without_duplicates(self.texts, *order, min_rows=min_rows)
        for batch in plan:
            for micro_batch in range(self.partition.micro_batches):
                yield self.partition.select_rows(batch, micro_batch).tolist()


class SeededLoader(DataLoader[Feature]):
    """Loader that sets the epoch of its batches, and draws nothing from the global random state."""

    def __init__(self, features: Features, batches: SeededBatches, collate: Collator) -> None:
        super().__init__(features, batch_sampler=batches, collate_fn=collate, generator=torch.Generator())  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration loads."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class InMemoryBatches:
    """Batches of features in memory."""

    def __init__(self, features: Features, training: TrainingConfig) -> None:
        self.features, self.training = features, training
        self.rows, self.budget = len(features), None
        self.lengths = get_lengths(features)
        self.items = count_labels(features)
        self.texts = get_text_ids(features)
        self.batching: str = training.batching
        if self.texts is not None:
            # The texts of a batch are negatives of each other. Sorted batches would have negatives of similar length.
            if training.batching == "sorted":
                message = "training.batching=sorted does not work with a loss that takes its negatives from the batch"
                raise RecipeError(message, "leave it out")
            self.batching = "random"
        self.sampler: SeededBatches

    def __len__(self) -> int:
        return len(self.features)

    def loader(
        self, collate: Collator, *, processes: int, process: int, padding_reason: str | None = None
    ) -> DataLoader[Any]:
        """Build the loader of one process's rows, epoch after epoch."""
        training = self.training
        self.batching = choose_batching(self.batching, self.items, padding_reason)
        self.sampler = SeededBatches(
            self.lengths,
            training.batch_size,
            training.seed,
            bucket_size=SORT_WINDOW if self.batching == "sorted" else 1,
            items=self.items,
            texts=self.texts,
            partition=BatchPartition(training.gradient_accumulation, processes, process),
        )
        return SeededLoader(self.features, self.sampler, collate)

    def get_longest_rows(self) -> list[Feature]:
        """Return the longest rows, as many as there are in the batch with the most tokens, padding included."""
        lengths = np.asarray(self.lengths)
        largest = max(self.sampler, key=lambda rows: len(rows) * lengths[rows].max())
        return [self.features[row] for row in longest_rows(lengths, len(largest))]

    def find_used_tokens(self) -> Iterable[int] | None:
        """Return the token ids of the training rows if only their embeddings are trained, else None."""
        # A custom collator can add tokens to a batch.
        is_known = self.training.train_used_embeddings_only and not self.training.collator
        return get_used_token_ids(self.features).tolist() if is_known else None

    def get_step_size(self) -> tuple[float, float]:
        """Return the mean number of rows and of tokens per step."""
        steps = self.training.steps_per_epoch(len(self.lengths))
        return len(self.lengths) / steps, float(self.lengths.sum()) / steps

    def state(self, step: int) -> dict[str, Any]:
        """Return the batching, because another machine could choose another one; the seed determines the rest."""
        return {"batching": self.batching}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue with the stored batching."""
        self.batching = state.get("batching", self.batching)


def check_batch(training: BaseTrainingConfig, rows: int | None, processes: int) -> None:
    """Check that every batch can be divided evenly. Pretraining passes no number of rows.

    Raises:
        UsageError: If the batch size is not a multiple of processes times micro-batches, or there are too few rows.
    """
    num_shares = processes * training.gradient_accumulation
    if training.batch_size % num_shares:
        parts = f"{processes} process(es) with {training.gradient_accumulation} micro-batch(es) each"
        message = f"batch_size {training.batch_size} cannot be divided among {parts}"
        raise UsageError(message, f"make it a multiple of {num_shares}")
    if rows is not None and rows // training.steps_per_epoch(rows) < num_shares:
        message = f"{rows} rows are too few for {num_shares} shares of a batch"
        raise UsageError(message, "use fewer processes or micro-batches")
