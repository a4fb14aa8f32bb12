"""Batches of a corpus by the number of their step: what a step sees follows from the seed and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from bertkit.corpus.tokenized import TokenizedCorpus
from bertkit.errors import DataError
from bertkit.objectives import Examples, Objective, PretrainSetup
from bertkit.tokens.features import Collator, Feature
from bertkit.training.budget import Budget

_ENDLESS = 10**9  # steps of a run that ends by the clock


class Turn(NamedTuple):
    """A batch to be made, and how far training is then: known here, and not by the processes that make batches."""

    step: int
    part: int
    progress: float
    short_steps: int


class PretrainBatches(Dataset[Feature]):
    """The batches of all steps, made when they are asked for, by whichever process.

    Each example draws from a generator of its own, keyed by seed, epoch and its number. So a run that goes on, and one
    whose batches are made by other processes, sees the same as any other. Only with a budget of time the clock decides
    when long blocks begin, and how much is hidden.
    """

    def __init__(
        self, corpus: TokenizedCorpus, objective: Objective, setup: PretrainSetup, budget: Budget | None = None
    ) -> None:
        self.corpus, self.objective, self.setup, self.budget = corpus, objective, setup, budget
        self.training = training = setup.recipe.training
        self.rows: int | None = None
        self.process, self.processes = 0, 1
        self.known: dict[int, tuple[int, Examples]] = {}  # length -> the epoch whose examples are in memory, and they
        self.orders: dict[tuple[int, int], Any] = {}
        long = self.examples(training.max_length, 0)
        if training.budget is not None:
            self.steps = _ENDLESS
            self.short_steps = _ENDLESS if training.short_length else 0
        else:
            self.steps = training.steps or math.ceil(training.epochs * training.steps_per_epoch(len(long)))
            self.short_steps = round(training.short_share * self.steps) if training.short_length else 0
        lengths = [length for length in (training.max_length, training.short_length) if length]
        self.sizes = {length: len(self.examples(length, 0)) for length in lengths}
        self.tokens_per_row = {length: float(np.mean(self.examples(length, 0).lengths)) for length in lengths}

    def __len__(self) -> int:
        return self.steps * self.training.gradient_accumulation

    def loader(self, collate: Collator, *, processes: int, process: int) -> DataLoader[Any]:
        """Load the share of one process of all steps."""
        self.processes, self.process = processes, process
        return DataLoader(
            self,
            batch_sampler=_Turns(self),
            collate_fn=collate,
            num_workers=self.training.workers,
            multiprocessing_context="fork" if self.training.workers else None,  # the corpus stays where it is mapped
            generator=torch.Generator(),
        )

    def turn(self, number: int) -> Turn:
        """Give what the batch of this number is made of."""
        step, part = divmod(number, self.training.gradient_accumulation)
        self._read_clock(step)
        progress = self.budget.passed if self.budget else step / self.steps
        return Turn(step, part, progress, self.short_steps)

    def __getitems__(self, turns: list[Turn]) -> list[Feature]:
        shares = self.processes * self.training.gradient_accumulation
        mine = range(self.training.batch_size)[turns[0].part * self.processes + self.process :: shares]
        return [self._feature(turns[0], place) for place in mine]

    def occurring_tokens(self) -> None:
        """Give None: all embeddings are trained, since the head answers with any token."""
        return None

    def pace(self) -> tuple[float, float]:
        """Give the rows and the tokens of a step, on average; where the clock decides, those of a step of now."""
        size = self.training.batch_size
        return size, self.tokens(self.steps) / self.steps

    def tokens(self, steps: int) -> float:
        """Give the tokens of so many steps, on average over the epochs."""
        return sum(self.tokens_by_length(steps).values())

    def tokens_by_length(self, steps: int) -> dict[int, float]:
        """Give the tokens of so many steps for each length of blocks, on average over the epochs."""
        short = min(steps, self.short_steps)
        counts = {self.training.max_length: steps - short, self.training.short_length: short}
        return {
            length: self.training.batch_size * self.tokens_per_row[length] * count
            for length, count in counts.items()
            if length
        }

    def only(self, length: int, steps: int) -> PretrainBatches:
        """Give so many steps of the same examples, all of one of their lengths, made in this process."""
        batches = copy(self)
        batches.budget = None
        batches.training = self.training.model_copy(update={"workers": 0})
        batches.steps, batches.short_steps = steps, steps if length == self.training.short_length else 0
        return batches

    def state(self, step: int) -> dict[str, Any]:
        """Give what a checkpoint has to know to go on after a step: what the clock decided; the rest is in the seed."""
        self._read_clock(step)
        return {"short_steps": self.short_steps} if self.budget else {}

    def load_state(self, place: dict[str, Any]) -> None:
        """Go on from a place that `place` gave."""
        self.short_steps = place.get("short_steps", self.short_steps)

    def _read_clock(self, step: int) -> None:
        """Begin with long blocks where there is a budget and the time of the short ones is up."""
        if self.budget and self.short_steps == _ENDLESS and self.budget.passed >= self.training.short_share:
            self.short_steps = step

    def examples(self, length: int, epoch: int) -> Examples:
        """Give the examples of an epoch; those of one epoch a length are in memory."""
        if self.known.get(length, (None,))[0] != epoch:
            found = self.objective.examples(self.corpus, length, self.setup, epoch)
            if not len(found):
                raise DataError("the corpus gives no example to train on", "give it more text")
            self.known[length] = epoch, found
        return self.known[length][1]

    def _feature(self, turn: Turn, place: int) -> Feature:
        training = self.training
        is_short = turn.step < turn.short_steps
        length = training.short_length if is_short and training.short_length else training.max_length
        number = (turn.step if is_short else turn.step - turn.short_steps) * training.batch_size + place
        epoch, number = divmod(number, self.sizes[length])
        order = self._order(length, epoch)
        row = int(order[number % len(order)])  # an epoch may have more or fewer examples than the first, which counts
        version = epoch % training.dupe_factor if training.dupe_factor else epoch
        random = np.random.default_rng((training.seed, version, row, length))
        return self.objective.feature(self.examples(length, epoch)[row], turn.progress, random, self.setup)

    def _order(self, length: int, epoch: int) -> Any:
        if (length, epoch) not in self.orders:
            self.orders = {key: order for key, order in self.orders.items() if key[0] != length}
            count = len(self.examples(length, epoch))
            self.orders[length, epoch] = np.random.default_rng((self.training.seed, epoch, length)).permutation(count)
        return self.orders[length, epoch]


class _Turns(BatchSampler):
    """All turns of a run, one after the other."""

    def __init__(self, batches: PretrainBatches) -> None:
        super().__init__(range(len(batches)), 1, drop_last=False)
        self.batches = batches

    def __iter__(self) -> Iterator[list[Any]]:
        return ([self.batches.turn(number)] for number in range(len(self.batches)))
