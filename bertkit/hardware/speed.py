"""What limits a training step: its operations, and the machine's fastest matrix products; and timings by turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, NamedTuple

from bertkit.hardware.device import Device, find_device
from bertkit.progress import get_progress, stage

STEADY = 0.2
"""How far the rounds of a timing may disagree; beyond that, no ratio is told."""

# of a timing; short work is repeated for some time, at least twice
_ROUNDS, _IN_A_ROW, _LEAST_SECONDS = 3, 2, 0.01
_ROWS = (1024, 4096)  # of the products tried, as in a small and a large batch


def training_operations(sizes: tuple[int, int, int], lengths: Sequence[int]) -> float:
    """Count the floating-point operations of a training step on texts of these lengths, without padding.

    The backward pass costs twice the forward pass. Counted are the matrix products of layers and attention, not those
    of embeddings and head.

    Args:
        sizes: number of layers, hidden size, intermediate size.
        lengths: tokens of each text.

    >>> training_operations((1, 2, 3), [5])
    1440.0
    """
    layers, hidden, intermediate = sizes
    products = 2 * sum(lengths) * (4 * hidden**2 + 2 * hidden * intermediate)
    attention = sum(4 * length**2 * hidden for length in lengths)
    return 3.0 * layers * (products + attention)


def fastest_products(device: str, precision: str, hidden: int, intermediate: int) -> float:
    """Measure the operations per second of the fastest of a model's matrix products in a precision."""
    import torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    computes = Device(device)
    turns = 1 if computes.is_cpu else 20  # a single product of a GPU is too short to time
    best = 0.0
    for rows in _ROWS:
        for left, right in ((hidden, hidden), (hidden, intermediate), (intermediate, hidden)):
            texts = torch.ones(rows, left, dtype=dtype, device=device)
            weights = torch.ones(right, left, dtype=dtype, device=device)
            for _ in range(4):  # the first warms up
                start = time.perf_counter()
                for _ in range(turns):
                    kept = torch.nn.functional.linear(texts, weights)  # noqa: F841  XLA computes nothing that is dropped
                computes.synchronize()
                best = max(best, turns * 2 * rows * left * right / (time.perf_counter() - start))
    return best


@dataclass(frozen=True)
class Timing:
    """The seconds of a function in each round, for each item of work: (rounds, items)."""

    rounds: list[list[float]]

    @property
    def seconds(self) -> list[float]:
        """The fastest of each item: other work on the machine can only slow it down."""
        return [min(of_item) for of_item in zip(*self.rounds, strict=True)]

    def totals(self, items: slice = slice(None)) -> list[float]:
        """Return the seconds that each round took for some items."""
        return [sum(seconds[items]) for seconds in self.rounds]

    def spread(self, items: slice = slice(None)) -> float:
        """Return by which share the slowest round took longer than the fastest."""
        return spread(self.totals(items))


def spread(values: Sequence[float]) -> float:
    """Return by which share the largest value is above the smallest.

    >>> spread([2.0, 3.0])
    0.5
    """
    return max(values) / min(values) - 1


def times_as_fast(first: Timing, second: Timing, items: slice = slice(None)) -> float | None:
    """Return how often the second function does the work in the time of the first; None where rounds disagree.

    >>> steady, busy = Timing([[2.0], [2.1]]), Timing([[9.0], [1.0]])
    >>> times_as_fast(steady, Timing([[1.0], [1.1]])), times_as_fast(busy, steady)
    (2.0, None)
    """
    rounds = zip(first.totals(items), second.totals(items), strict=True)
    if spread([before / after for before, after in rounds]) > STEADY:
        return None
    return sum(first.seconds[items]) / sum(second.seconds[items])


def describe_spreads(spreads: Iterable[float | None]) -> list[str]:
    """Return a note on times that do not repeat; none where the rounds of each model agree.

    >>> describe_spreads([0.1, None]), describe_spreads([0.1, 0.31])
    ([], ['rounds of timing differ by up to 31%: other programs disturb, measure again'])
    """
    most = max((value for value in spreads if value is not None), default=0.0)
    what = f"rounds of timing differ by up to {most:.0%}: other programs disturb, measure again"
    return [what] if most > STEADY else []


def time_by_turns(runs: Sequence[Callable[[Any], object]], work: Sequence[Any]) -> list[Timing]:
    """Measure the seconds that each function takes for each item of work, in several rounds.

    Functions take turns at every item, each at least twice in a row, of which the fastest counts. The first time,
    others have filled the processor's caches, as they do not where one function runs alone.
    """
    timings = [Timing([]) for _ in runs]
    with stage("timing", _ROUNDS * len(work)):
        for turn in range(_ROUNDS):
            for timing in timings:
                timing.rounds.append([])
            for index, item in enumerate(work):
                for run, timing in zip(runs, timings, strict=True):
                    seconds = list[float]()
                    while len(seconds) < _IN_A_ROW or sum(seconds) < _LEAST_SECONDS:
                        seconds.append(_time(run, item))
                    timing.rounds[turn].append(min(seconds))
                get_progress().update(turn * len(work) + index + 1, {})
    return timings


class Pace(NamedTuple):
    """How fast a model reads rows."""

    row_seconds: float
    """Mean over rows that are read one at a time."""
    rows_per_second: float
    """In batches."""
    spread: float
    """By which share the slowest round took longer than the fastest, for single rows or for batches."""


def measure_paces(
    runs: Sequence[Callable[[Any], object]], singles: Sequence[Any], batches: Sequence[Any], rows: int
) -> list[Pace]:
    """Measure by turns how fast each function reads single rows, and batches of so many rows."""
    alone, together = slice(len(singles)), slice(len(singles), None)
    return [
        Pace(
            mean(timing.seconds[alone]),
            rows / sum(timing.seconds[together]),
            max(timing.spread(alone), timing.spread(together)),
        )
        for timing in time_by_turns(runs, [*singles, *batches])
    ]


def _time(run: Callable[[Any], object], item: object) -> float:
    # exported models do not need torch
    device = find_device() if "torch" in sys.modules else Device("cpu")
    start = time.perf_counter()
    run(item)
    device.synchronize()
    return time.perf_counter() - start
