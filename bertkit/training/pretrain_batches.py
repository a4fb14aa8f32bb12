"""Pretraining batches by step; the rows of a step depend only on the seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from bertkit.errors import DataError
from bertkit.hardware.process import batch_workers
from bertkit.pretraining.objectives import Examples, Objective, PretrainContext
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.tokens.features import Collator, Feature
from bertkit.training.batching import BatchPartition, InMemoryBatches, longest_rows
from bertkit.training.stopping import Budget

_ENDLESS = 10**9  # steps of a run with a time budget, whose number is unknown


class BatchKey(NamedTuple):
    """Values that define a batch. The training process sets them, because workers cannot read the budget's clock."""

    step: int
    micro_batch: int
    progress: float
    short_steps: int


class PretrainBatches(Dataset[Feature]):
    """Batches of all steps, built on request in any process.

    Each example has its own random generator, seeded by seed, epoch and index. So a resumed run, and a run with worker
    processes, sees the same rows. With a time budget, the clock decides when long blocks begin and how many tokens are
    masked.
    """

    def __init__(
        self, corpus: TokenizedCorpus, objective: Objective, context: PretrainContext, budget: Budget | None = None
    ) -> None:
        self.corpus, self.objective, self.context, self.budget = corpus, objective, context, budget
        self.training = training = context.recipe.training
        self.rows: int | None = None
        self.partition = BatchPartition(training.gradient_accumulation)
        # length -> epoch and its examples
        self.cache: dict[int, tuple[int, Examples]] = {}
        self.orders: dict[tuple[int, int], np.ndarray] = {}
        long_examples = self.examples(training.max_length, 0)
        if training.budget is not None:
            # With a time budget, the number of steps is unknown. All blocks are short until `_read_clock` sets
            # `short_steps`.
            self.steps = _ENDLESS
            self.short_steps = _ENDLESS if training.short_length else 0
        else:
            self.steps = training.steps or math.ceil(training.epochs * training.steps_per_epoch(len(long_examples)))
            self.short_steps = round(training.short_fraction * self.steps) if training.short_length else 0
        lengths = [length for length in (training.max_length, training.short_length) if length]
        self.sizes = {length: len(self.examples(length, 0)) for length in lengths}
        self.tokens_per_row = {length: float(np.mean(self.examples(length, 0).lengths)) for length in lengths}

    def __len__(self) -> int:
        return self.steps * self.training.gradient_accumulation

    def loader(
        self, collate: Collator, *, processes: int, process: int, padding_reason: str | None = None
    ) -> DataLoader[Any]:
        """Build the loader of one process's share of all steps."""
        self.partition = BatchPartition(self.training.gradient_accumulation, processes, process)
        workers = batch_workers(self.training.workers)
        return DataLoader(
            self,
            batch_sampler=_BatchKeys(self),
            collate_fn=collate,
            num_workers=workers,
            # Forked workers share the memory map of the corpus.
            multiprocessing_context="fork" if workers else None,
            generator=torch.Generator(),
        )

    def make_key(self, index: int) -> BatchKey:
        """Return the key of a batch, whose index counts micro-batches over all steps."""
        step, micro_batch = divmod(index, self.training.gradient_accumulation)
        self._read_clock(step)
        progress = self.budget.local_fraction if self.budget else step / self.steps
        return BatchKey(step, micro_batch, progress, self.short_steps)

    def __getitems__(self, keys: list[BatchKey]) -> list[Feature]:
        # One key defines all rows of a micro-batch. Workers call this method, so that masking does not delay training.
        rows = self.partition.select_rows(range(self.training.batch_size), keys[0].micro_batch)
        return [self._feature(keys[0], row) for row in rows]

    def find_used_tokens(self) -> Iterable[int] | None:
        """Return None, because all embeddings are trained: the head can predict any token."""
        return None

    def get_longest_rows(self) -> list[Feature]:
        """Return features of the longest examples of an epoch, one per row of a micro-batch."""
        training = self.training
        examples = self.examples(training.max_length, 0)
        count = len(self.partition.select_rows(range(training.batch_size), 0))
        random = np.random.default_rng(training.seed)
        rows = longest_rows(examples.lengths, count)
        return [self.objective.feature(examples[row], 0.0, random, self.context) for row in rows]

    def get_step_size(self) -> tuple[float, float]:
        """Return the mean number of rows and of tokens per step; with a time budget, for the current block length."""
        size = self.training.batch_size
        return size, self.count_tokens(self.steps) / self.steps

    def count_tokens(self, steps: int) -> float:
        """Return the number of tokens in the first `steps` steps, as a mean over epochs."""
        return sum(self.count_tokens_by_length(steps).values())

    def count_tokens_by_length(self, steps: int) -> dict[int, float]:
        """Return the number of tokens in the first `steps` steps for each block length, as a mean over epochs."""
        size = self.training.batch_size
        return {length: size * self.tokens_per_row[length] * count for length, count in self._count_steps(steps)}

    def count_epochs(self, steps: int) -> float:
        """Return the number of epochs in the first `steps` steps."""
        size = self.training.batch_size
        return sum(size * count / self.sizes[length] for length, count in self._count_steps(steps))

    def _count_steps(self, steps: int) -> list[tuple[int, int]]:
        """Return each block length with its number of steps among the first `steps` steps."""
        training, short_steps = self.training, min(steps, self.short_steps)
        counts = [(training.max_length, steps - short_steps)]
        return [*counts, (training.short_length, short_steps)] if training.short_length else counts

    def select_length(self, length: int, steps: int) -> PretrainBatches:
        """Return a copy with `steps` steps of the same examples, all of one block length, without workers."""
        batches = copy(self)
        batches.budget = None
        batches.training = self.training.model_copy(update={"workers": 0})
        batches.steps, batches.short_steps = steps, steps if length == self.training.short_length else 0
        return batches

    def state(self, step: int) -> dict[str, Any]:
        """Return the state for a checkpoint of a step: with a time budget, the step at which long blocks begin."""
        self._read_clock(step)
        return {"short_steps": self.short_steps} if self.budget else {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
        self.short_steps = state.get("short_steps", self.short_steps)

    def _read_clock(self, step: int) -> None:
        """Make long blocks begin at this step if the time for short blocks is up."""
        if self.budget and self.short_steps == _ENDLESS and self.budget.local_fraction >= self.training.short_fraction:
            self.short_steps = step

    def examples(self, length: int, epoch: int) -> Examples:
        """Return the examples of an epoch; one epoch per length stays in memory."""
        if self.cache.get(length, (None,))[0] != epoch:
            examples = self.objective.examples(self.corpus, length, self.context, epoch)
            if not len(examples):
                raise DataError("the corpus has no example to train on", "give it more text")
            self.cache[length] = epoch, examples
        return self.cache[length][1]

    def _feature(self, key: BatchKey, row: int) -> Feature:
        training = self.training
        is_short = key.step < key.short_steps
        length = training.short_length if is_short and training.short_length else training.max_length
        # Rows are counted over all steps of one block length. So an epoch can end inside a batch, and a resumed run
        # finds any step without building the steps before it.
        position = (key.step if is_short else key.step - key.short_steps) * training.batch_size + row
        epoch, position = divmod(position, self.sizes[length])
        order = self._get_order(length, epoch)
        # `sizes` counts the examples of the first epoch; a later epoch can have more or fewer.
        example = int(order[position % len(order)])
        # The masks of an example are new in every epoch (Liu et al. 2019, section 4.1), or repeat after `dupe_factor`
        # epochs, as in BERT's data.
        random = np.random.default_rng((training.seed, training.get_example_version(epoch), example, length))
        return self.objective.feature(self.examples(length, epoch)[example], key.progress, random, self.context)

    def _get_order(self, length: int, epoch: int) -> np.ndarray:
        if (length, epoch) not in self.orders:
            # Only one order per block length is kept, because steps read one epoch after another.
            self.orders = {key: order for key, order in self.orders.items() if key[0] != length}
            count = len(self.examples(length, epoch))
            self.orders[length, epoch] = np.random.default_rng((self.training.seed, epoch, length)).permutation(count)
        return self.orders[length, epoch]


class _BatchKeys(BatchSampler):
    """The keys of all batches of a run, one after the other."""

    def __init__(self, batches: PretrainBatches) -> None:
        super().__init__(range(len(batches)), 1, drop_last=False)
        self.batches = batches

    def __iter__(self) -> Iterator[list[Any]]:
        # The DataLoader iterates in the training process and sends keys to its workers. So only this process reads the
        # clock.
        return ([self.batches.make_key(index)] for index in range(len(self.batches)))


Batches: TypeAlias = InMemoryBatches | PretrainBatches
"""Batches of a run, whose rows and order depend on the seed."""
