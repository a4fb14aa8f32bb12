"""Batches of rows of similar length, in an order that depends on nothing but the seed and the epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch.utils.data import DataLoader, Sampler

from bertkit.data.streams import SORT_WINDOW
from bertkit.recipe import Training
from bertkit.tokens.feature_cache import items_of, lengths_of, occurring_tokens_of
from bertkit.tokens.features import Collator, Feature

if TYPE_CHECKING:
    import torch

Lengths = Sequence[int] | np.ndarray[Any, Any]

_ATTENTION_BYTES = 2**25  # glibc keeps no larger block for the next use


def plan_epoch(
    lengths: Lengths,
    batch_size: int,
    seed: int,
    epoch: int,
    window: int = SORT_WINDOW,
    *,
    items: Lengths | None = None,
    least: int = 1,
) -> list[np.ndarray[Any, Any]]:
    """Give the row numbers of every batch of an epoch.

    Rows are shuffled, sorted by length inside windows of so many batches, cut into batches of equally many items (no
    small last batch), and the batches shuffled. Every row comes once. A window of one batch leaves to chance which rows
    meet.

    Args:
        lengths: tokens of each row.
        batch_size: rows of a batch, on average.
        seed: of the order.
        epoch: of the order.
        window: batches that are sorted together.
        items: what the loss is a mean over: how many each row has, one each when absent. Sorted batches of equally many
            rows would have few items where texts are short, and the mean would give these more weight than others.
        least: rows that every batch has at least.
    """
    random = np.random.default_rng((seed, epoch))
    order = random.permutation(len(lengths))
    count = -(-len(lengths) // batch_size)
    sizes = np.asarray(lengths)
    weights = np.ones(len(lengths), dtype=np.int64) if items is None or window == 1 else np.asarray(items)
    planned = []
    edges = np.linspace(0, len(order), count + 1).round().astype(int)
    for start in range(0, count, window):
        together = edges[start : start + window + 1]
        rows = order[together[0] : together[-1]]
        rows = rows[np.argsort(sizes[rows], kind="stable")]
        planned += np.split(rows, _split_evenly(weights[rows], len(together) - 1, least))
    return [planned[number] for number in random.permutation(len(planned))]


def _split_evenly(weights: np.ndarray[Any, Any], parts: int, least: int) -> list[int]:
    """Give where to cut a row of weights into parts of nearly equal sums, each of at least so many.

    Where weights differ, sizes are rounded to four binary digits: oneDNN compiles its products for every shape that it
    meets, and batches of one length should have few sizes.

    >>> _split_evenly(np.array([1, 1, 1, 1, 2, 2, 4]), 3, 1), _split_evenly(np.ones(7), 3, 1)
    ([4, 6], [2, 5])
    >>> _split_evenly(np.repeat([1, 2], [66, 33]), 4, 1)
    [32, 64, 82]
    """
    sums = np.concatenate([[0], np.cumsum(weights)])
    goals = sums[-1] * np.arange(1, parts) / parts
    differ = weights.min() < weights.max()
    cuts = [0]
    for number, goal in enumerate(goals, start=1):
        size = int(np.abs(sums - goal).argmin()) - cuts[-1]
        step = 2 ** max(size.bit_length() - 4, 0) if differ else 1
        latest = len(weights) - (parts - number) * least
        cuts.append(min(cuts[-1] + max(round(size / step) * step, least), latest))
    return cuts[1:]


def sort_window(training: Training) -> int:
    """Give how many batches are sorted by length together, as the recipe's `batching` says."""
    return SORT_WINDOW if training.batching == "sorted" else 1


class SeededBatches(Sampler[list[int]]):
    """The share of one process in every batch, in `parts` tokens to accumulate gradients over.

    Whatever the number of processes and parts, the optimizer sees the same rows in the same step.
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        seed: int,
        *,
        window: int = SORT_WINDOW,
        items: Lengths | None = None,
        parts: int = 1,
        processes: int = 1,
        process: int = 0,
    ) -> None:
        self.lengths, self.batch_size, self.seed, self.window, self.items = lengths, batch_size, seed, window, items
        self.parts, self.processes, self.process = parts, processes, process
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plans."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size) * self.parts

    def __iter__(self) -> Iterator[list[int]]:
        shares = self.parts * self.processes
        plan = plan_epoch(
            self.lengths, self.batch_size, self.seed, self.epoch, self.window, items=self.items, least=shares
        )
        for batch in plan:
            for part in range(self.parts):  # every n-th row: all shares get long and short ones
                yield batch[part * self.processes + self.process :: shares].tolist()


class SeededLoader(DataLoader[Feature]):
    """A loader that hands the epoch on to its batches and draws nothing from the global random state."""

    def __init__(self, features: Sequence[Feature], batches: SeededBatches, collate: Collator) -> None:
        import torch

        super().__init__(features, batch_sampler=batches, collate_fn=collate, generator=torch.Generator())  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs through."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class Batches(Protocol):
    """The batches of a run, in whose order nothing is left to chance."""

    rows: int | None
    """Rows of an epoch; None where nobody counts epochs."""

    def loader(self, collate: Collator, *, processes: int, process: int) -> DataLoader[Any]:
        """Load the share of one process."""

    def __len__(self) -> int: ...

    def occurring_tokens(self) -> Iterable[int] | None:
        """Give the tokens that occur; None where all embeddings are trained."""

    def pace(self) -> tuple[float, float]:
        """Give the rows and the tokens of a step, on average."""

    def state(self, step: int) -> dict[str, Any]:
        """Give what a checkpoint has to know to go on after a step."""

    def load_state(self, place: dict[str, Any]) -> None:
        """Go on from a place that `place` gave."""


class InMemoryBatches:
    """Batches of features that are all in memory."""

    def __init__(self, features: Sequence[Feature], training: Training) -> None:
        self.features, self.training = features, training
        self.rows: int | None = len(features)
        self.lengths, self.items = lengths_of(features), items_of(features)

    def __len__(self) -> int:
        return len(self.features)

    def loader(self, collate: Collator, *, processes: int, process: int) -> DataLoader[Any]:
        """Load the share of one process, epoch after epoch."""
        training = self.training
        batches = SeededBatches(
            self.lengths,
            training.batch_size,
            training.seed,
            window=sort_window(training),
            items=self.items,
            parts=training.gradient_accumulation,
            processes=processes,
            process=process,
        )
        return SeededLoader(self.features, batches, collate)

    def occurring_tokens(self) -> Iterable[int] | None:
        """Give the tokens that occur; None where all embeddings are trained."""
        return occurring_tokens_of(self.features).tolist() if self.training.occurring_embeddings else None

    def pace(self) -> tuple[float, float]:
        """Give the rows and the tokens of a step, on average."""
        steps = self.training.steps_per_epoch(len(self.lengths))
        return len(self.lengths) / steps, float(self.lengths.sum()) / steps

    def state(self, step: int) -> dict[str, Any]:
        """Give what a checkpoint has to know to go on after a step: nothing, since all follows from the seed."""
        return {}

    def load_state(self, place: dict[str, Any]) -> None:
        """Go on from a place that `place` gave."""


def split_batch(batch: dict[str, torch.Tensor], heads: int) -> list[dict[str, torch.Tensor]]:
    """Split a batch into parts whose attention weights take at most 32 MB a layer (or hold one row).

    On a CPU, larger tensors go back to the system after each use, and taking them anew costs more than computing them:
    a batch of 32 rows of 384 tokens takes half the time in parts, and a quarter of the memory.

    Args:
        batch: tensors whose first axis is rows; ``input_ids`` of shape (rows, tokens) or (rows, choices, tokens).
        heads: attention heads of the model.
    """
    shape = batch["input_ids"].shape
    one_row = 4 * heads * math.prod(shape[1:]) * shape[-1]
    size = max(1, _ATTENTION_BYTES // one_row)
    starts = range(0, shape[0], size)
    return [{name: values[start : start + size] for name, values in batch.items()} for start in starts]
