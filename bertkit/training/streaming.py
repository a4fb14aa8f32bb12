"""Batches of a stream of rows, of which one window is in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from bertkit.data.streams import RowStream, StreamBuffers
from bertkit.errors import UsageError
from bertkit.recipe import Row, Training
from bertkit.tokens.feature_cache import items_of
from bertkit.tokens.features import Collator, Feature, count_tokens
from bertkit.training.batching import plan_epoch, sort_window

log = logging.getLogger("bertkit")


class StreamedBatches(Dataset[Feature]):
    """The batches of a stream by their numbers, which must rise.

    Each window is planned as an epoch is, keyed by its number. Batches have numbers, and are made when asked for,
    so that the Trainer skips numbers where it goes on from a checkpoint, and not rows.
    """

    def __init__(
        self, stream: RowStream, encode: Callable[[Sequence[Row]], Sequence[Feature]], training: Training
    ) -> None:
        self.windows, self.encode, self.training = StreamBuffers(stream), encode, training
        self.rows: int | None = None
        self.process, self.processes = 0, 1
        self.window, self.first = -1, 0  # number of the window in memory, and its first step
        self.batches: list[list[Feature]] = []
        self.places: list[dict[str, Any]] = []
        self.counted = [0, 0, 0]  # steps, rows and tokens so far

    def loader(self, collate: Collator, *, processes: int, process: int) -> DataLoader[Any]:
        """Load the share of one process of all steps; each process reads and encodes all rows."""
        self.processes, self.process = processes, process
        numbers = BatchSampler(range(len(self)), 1, drop_last=False)
        return DataLoader(self, batch_sampler=numbers, collate_fn=collate, generator=torch.Generator())

    def __len__(self) -> int:
        return self.training.total_steps(None) * self.training.gradient_accumulation

    def __getitems__(self, numbers: list[int]) -> list[Feature]:
        step, part = divmod(numbers[0], self.training.gradient_accumulation)
        while step >= self.first + len(self.batches):
            self._read_window()
        shares = self.processes * self.training.gradient_accumulation
        return self.batches[step - self.first][part * self.processes + self.process :: shares]

    def occurring_tokens(self) -> Iterable[int] | None:
        """Give None: which tokens occur is not known before they do."""
        return None

    def pace(self) -> tuple[float, float]:
        """Give the rows and the tokens of a step, on average so far."""
        steps, rows, tokens = self.counted
        return rows / max(steps, 1), tokens / max(steps, 1)

    def state(self, step: int) -> dict[str, Any]:
        """Give where the window of the next step (or one before it) begins; a loader may be one step ahead."""
        return [place for place in self.places if place["step"] <= step][-1]

    def load_state(self, place: dict[str, Any]) -> None:
        """Go on from a place that `place` gave, past the rows before it.

        Raises:
            DataError: they are not the rows that lay before it then.
        """
        if place:
            log.info(f"reading past the first {place['rows']:,} rows, which this run has had")
            self.window, self.first = place["window"] - 1, place["step"]
            self.windows.load_state({name: value for name, value in place.items() if name not in ("window", "step")})

    def _read_window(self) -> None:
        self.window, self.first = self.window + 1, self.first + len(self.batches)
        self.places = [*self.places[-1:], {"window": self.window, "step": self.first, **self.windows.state()}]
        self.batches = []  # two windows are never in memory
        rows = self.windows.read()
        features = self.encode(rows)
        lengths = [count_tokens(feature) for feature in features]
        training = self.training
        shares = self.processes * training.gradient_accumulation
        window = sort_window(training)
        plan = plan_epoch(
            lengths, training.batch_size, training.seed, self.window, window, items=items_of(features), least=shares
        )
        if min(map(len, plan)) < shares:  # rows that make several features each do not come out even
            what = f"batch_size {self.training.batch_size} is too small for {shares} shares of a batch"
            raise UsageError(what, f"make it {2 * shares}")
        self.batches = [[features[number] for number in batch] for batch in plan]
        self.counted = [sum(pair) for pair in zip(self.counted, (len(plan), len(rows), sum(lengths)), strict=True)]
