"""Batches of a stream of rows, of which one buffer is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from bertkit.data.streams import RowStream, StreamBuffers
from bertkit.errors import UsageError
from bertkit.progress import log
from bertkit.recipe import Row, Training
from bertkit.tokens.feature_cache import items_of, texts_of
from bertkit.tokens.features import Collator, Feature, Features, count_tokens
from bertkit.training.batching import (
    Shares,
    choose_batching,
    longest_rows,
    plan_distinct,
    plan_epoch,
    refuse_sorted_batching,
    sort_window_of,
)
from bertkit.training.stopping import Budget


class StreamedBatches(Dataset[Feature]):
    """The batches of a stream by their numbers, which must rise.

    Each buffer is planned like an epoch, seeded by its number. A batch is made when it is asked for, so the Trainer
    skips numbers where it resumes from a checkpoint, and not rows.
    """

    def __init__(self, stream: RowStream, encode: Callable[[Sequence[Row]], Features], training: Training) -> None:
        self.buffers, self.encode, self.training = StreamBuffers(stream), encode, training
        self.rows: int | None = None
        self.budget: Budget | None = None
        self.batching: str = training.batching
        self.padding: str | None = None
        self.shares = Shares(training.gradient_accumulation)
        # number of the buffer in memory, and its first step
        self.buffer, self.first_step = -1, 0
        self.batches: list[list[Feature]] = []
        self.states: list[dict[str, Any]] = []
        self.totals = [0, 0, 0]  # steps, rows and tokens so far

    def loader(self, collate: Collator, *, processes: int, process: int, padding: str | None = None) -> DataLoader[Any]:
        """Build the loader of one process's share of all steps; each process reads and encodes all rows."""
        self.padding = padding
        self.shares = Shares(self.training.gradient_accumulation, processes, process)
        numbers = BatchSampler(range(len(self)), 1, drop_last=False)
        return DataLoader(self, batch_sampler=numbers, collate_fn=collate, generator=torch.Generator())

    def __len__(self) -> int:
        return self.training.total_steps(None) * self.training.gradient_accumulation

    def __getitems__(self, numbers: list[int]) -> list[Feature]:
        step, micro_batch = divmod(numbers[0], self.training.gradient_accumulation)
        # steps only rise, so buffers are read in their order and none is needed again
        while step >= self.first_step + len(self.batches):
            self._read_buffer()
        batch = self.shares.of(self.batches[step - self.first_step], micro_batch)
        return batch

    def occurring_tokens(self) -> Iterable[int] | None:
        """Return None: which tokens occur is not known before they do."""
        return None

    def longest(self) -> list[Feature]:
        """Return the longest rows, as many as its largest batch has; a later buffer may have longer ones."""
        if not self.batches:
            self._read_buffer()
        features = [feature for batch in self.batches for feature in batch]
        count = -(-max(map(len, self.batches)) // self.shares.count)
        return [features[row] for row in longest_rows([count_tokens(feature) for feature in features], count)]

    def step_size(self) -> tuple[float, float]:
        """Return the mean number of rows and of tokens per step so far."""
        steps, rows, tokens = self.totals
        return rows / max(steps, 1), tokens / max(steps, 1)

    def state(self, step: int) -> dict[str, Any]:
        """Return where the buffer of the next step (or one before it) begins; a loader may be one step ahead."""
        last = [state for state in self.states if state["step"] <= step][-1]
        return {**last, "batching": self.batching}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned, past the rows before it.

        Raises:
            DataError: they are not the rows that came before it then.
        """
        if state:
            log.info(f"skipping the first {state['rows']:,} rows, which this run has been trained on")
            # one less, since `_read_buffer` counts up before it reads
            self.buffer, self.first_step = state["window"] - 1, state["step"]
            self.batching = state.get("batching", self.batching)
            ours = ("window", "step", "batching")
            self.buffers.load_state({name: value for name, value in state.items() if name not in ours})

    def _read_buffer(self) -> None:
        self.buffer, self.first_step = self.buffer + 1, self.first_step + len(self.batches)
        # The loader may be a step ahead of training, so a checkpoint may still belong to the buffer before this one.
        # The states of both are kept.
        self.states = [*self.states[-1:], {"window": self.buffer, "step": self.first_step, **self.buffers.state()}]
        self.batches = []  # two buffers are never in memory
        rows = self.buffers.read()
        features = self.encode(rows)
        lengths = [count_tokens(feature) for feature in features]
        training, shares, items, texts = self.training, self.shares.count, items_of(features), texts_of(features)
        order = (training.batch_size, training.seed, self.buffer)
        if texts is None:
            self.batching = choose_batching(self.batching, items, self.padding)
            plan = plan_epoch(lengths, *order, sort_window_of(self.batching), items=items, min_rows=shares)
        else:
            self.batching = refuse_sorted_batching(self.batching)
            plan = plan_distinct(texts, *order, min_rows=shares)
        if min(map(len, plan)) < shares:  # rows of several features each do not divide evenly
            what = f"batch_size {training.batch_size} is too small for {shares} shares of a batch"
            raise UsageError(what, f"make it {2 * shares}")
        self.batches = [[features[number] for number in batch] for batch in plan]
        self.totals = [sum(pair) for pair in zip(self.totals, (len(plan), len(rows), sum(lengths)), strict=True)]
