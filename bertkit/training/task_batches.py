"""Batches of several tasks, each batch of one task, in an order that depends on nothing but the seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from bertkit.errors import RecipeError
from bertkit.hardware.memory import on_host
from bertkit.modeling.info import Model
from bertkit.recipe import Training
from bertkit.tokens.features import Batch, Collator, Feature, Features, Tensors
from bertkit.training.batching import InMemoryBatches, SeededBatches, SeededLoader, check_batch
from bertkit.training.losses import Terms
from bertkit.training.stopping import Budget

_TASK = "task"  # name of the number of a feature's task, (rows,) in a batch


def share_steps(rows: Sequence[int], steps: int, sampling: float) -> list[int]:
    """Share the steps of an epoch among tasks in proportion to their rows to the power of `sampling`; one at least.

    What rounding leaves goes to the largest remainders (Hamilton's method).

    >>> share_steps([6000, 600], 22, 1.0), share_steps([6000, 600], 22, 0.5), share_steps([6000, 600], 22, 0.0)
    ([20, 2], [17, 5], [11, 11])
    >>> share_steps([10**6, 1], 4, 1.0)
    [3, 1]
    """
    weights = np.asarray(rows, dtype=float) ** sampling
    exact = steps * weights / weights.sum()
    shares = np.maximum(np.floor(exact), 1).astype(int)
    while shares.sum() < steps:
        shares[np.argmax(exact - shares)] += 1
    while shares.sum() > steps:  # of tasks that are due less than one
        shares[np.argmax(np.where(shares > 1, shares - exact, -np.inf))] -= 1
    return [int(share) for share in shares]


class TaskFeatures(Sequence[Feature]):
    """The features of several tasks one after another, each with the number of its task."""

    def __init__(self, tasks: Sequence[Features]) -> None:
        self.tasks = tasks
        self.starts = np.cumsum([0, *map(len, tasks)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, number: Any) -> Any:
        task = int(np.searchsorted(self.starts, number, side="right")) - 1
        return {**self.tasks[task][number - int(self.starts[task])], _TASK: task}


class TaskOrder(SeededBatches):
    """The rows of one process's share of every batch. Each task goes through epochs of its own, batch after batch."""

    def __init__(self, tasks: Sequence[SeededBatches], shares: Sequence[int], starts: Sequence[int]) -> None:
        self.tasks, self.steps, self.starts = tasks, shares, starts
        self.micro_batches, self.seed = tasks[0].shares.micro_batches, tasks[0].seed
        self.epoch = 0

    def __len__(self) -> int:
        return sum(self.steps) * self.micro_batches

    def __iter__(self) -> Iterator[list[int]]:
        order = np.repeat(np.arange(len(self.tasks)), self.steps)
        np.random.default_rng((self.seed, self.epoch, len(self.tasks))).shuffle(order)
        batches = [self._batches_from(task, self.epoch * steps) for task, steps in enumerate(self.steps)]
        for task in order:
            for _ in range(self.micro_batches):
                yield next(batches[task])

    def _batches_from(self, task: int, step: int) -> Iterator[list[int]]:
        """Yield the micro-batches of a task from its own step of this number on, without an end."""
        batches, start = self.tasks[task], int(self.starts[task])
        epoch, done = divmod(step * self.micro_batches, len(batches))
        while True:
            batches.set_epoch(epoch)
            planned = list(batches)
            yield from ([start + row for row in rows] for rows in planned[done:])
            epoch, done = epoch + 1, 0


class TaskBatches:
    """The batches of several tasks, whose features are all in memory.

    An epoch has as many steps as one of all rows together would.

    Raises:
        RecipeError: these are fewer than the tasks.
    """

    def __init__(self, tasks: Mapping[str, InMemoryBatches], training: Training, sampling: float) -> None:
        self.tasks, self.training = dict(tasks), training
        counts = [len(batches) for batches in tasks.values()]
        self.rows: int | None = sum(counts)
        self.budget: Budget | None = None
        self.features = TaskFeatures([batches.features for batches in tasks.values()])
        steps = training.steps_per_epoch(sum(counts))
        if steps < len(counts):
            raise RecipeError(f"an epoch has {steps} batch(es) for {len(counts)} tasks", "use a smaller --batch-size")
        self.steps = share_steps(counts, steps, sampling)

    def __len__(self) -> int:
        return len(self.features)

    def loader(self, collate: Collator, *, processes: int, process: int, padding: str | None = None) -> DataLoader[Any]:
        """Build the loader of one process's share, epoch after epoch."""
        for batches in self.tasks.values():
            check_batch(self.training, batches.rows, processes)
            batches.loader(collate, processes=processes, process=process, padding=padding)
        samplers = [batches.sampler for batches in self.tasks.values()]
        return SeededLoader(self.features, TaskOrder(samplers, self.steps, self.features.starts.tolist()), collate)

    def longest(self) -> list[Feature]:
        """Return the longest rows of the task whose largest batch has the most padded tokens."""
        longest = [batches.longest() for batches in self.tasks.values()]
        sizes = [len(rows) * max(np.size(row["input_ids"]) for row in rows) for rows in longest]
        task = int(np.argmax(sizes))
        return [{**row, _TASK: task} for row in longest[task]]

    def occurring_tokens(self) -> Iterable[int] | None:
        """Return the token ids that occur in any task; None where all embeddings are trained."""
        tokens = [batches.occurring_tokens() for batches in self.tasks.values()]
        return set().union(*(ids for ids in tokens if ids is not None)) if None not in tokens else None

    def step_size(self) -> tuple[float, float]:
        """Return the mean number of rows and of tokens per step."""
        sizes = [batches.step_size() for batches in self.tasks.values()]
        rows, tokens = (np.average(values, weights=self.steps) for values in zip(*sizes, strict=True))
        return float(rows), float(tokens)

    def state(self, step: int) -> dict[str, Any]:
        """Return how the batches of each task are made; the rest follows from the seed."""
        return {name: batches.state(step) for name, batches in self.tasks.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Make batches as before."""
        for name, batches in self.tasks.items():
            batches.load_state(state.get(name, {}))


def join_terms(tasks: Mapping[str, Terms]) -> Terms:
    """Build the terms of several tasks for `HeadsOnEncoder`: one per task, of which a batch has items of one.

    Args:
        tasks: name of a task -> its one term.
    """
    names = list(tasks)

    def count(batch: Batch) -> Mapping[str, int]:
        name, own_batch = _open_batch(batch)
        return {name: next(iter(tasks[name].count(own_batch).values()))}

    def sums(model: Model, batch: Batch) -> Batch:
        name, own_batch = _open_batch(batch)
        run: Any = partial(model, name)
        # by which `info_of` knows it
        run.module = getattr(model, "module", model).models[name]
        return {name: next(iter(tasks[name].sums(run, own_batch).values()))}

    def _open_batch(batch: Batch) -> tuple[str, Tensors]:
        return names[int(on_host(batch[_TASK])[0])], {key: value for key, value in batch.items() if key != _TASK}

    return Terms(dict.fromkeys(names, 1.0), count, sums)


def join_collators(tasks: Sequence[Collator]) -> Collator:
    """Build the collator of several tasks, for features of one of them: its own batch, and ``task``, (rows,)."""

    def collate(features: Features) -> dict[str, torch.Tensor]:
        task = features[0][_TASK]
        own = [{name: value for name, value in feature.items() if name != _TASK} for feature in features]
        return {**tasks[task](own), _TASK: torch.full((len(features),), task)}

    return collate
