"""Number of operations of a training step, speed of matrix products, and timings of alternating functions."""

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
"""Maximum spread between rounds of timing, as a fraction; with a larger spread, no speedup is reported."""

# In each round, a function runs at least twice in a row, until this number of seconds has passed.
_ROUNDS, _IN_A_ROW, _MIN_SECONDS = 3, 2, 0.01
_ROWS = (1024, 4096)  # rows of the timed matrix products: tokens of a small and a large batch


def count_training_operations(sizes: tuple[int, int, int], lengths: Sequence[int]) -> float:
    """Count the floating-point operations of a training step on texts of these lengths, without padding.

    The count includes the matrix products of layers and attention, but not of embeddings and head. The backward pass
    has twice the operations of the forward pass.

    Args:
        sizes: Number of layers, hidden size, intermediate size.
        lengths: Number of tokens of each text.

    >>> count_training_operations((1, 2, 3), [5])
    1440.0
    """
    layers, hidden, intermediate = sizes
    products = 2 * sum(lengths) * (4 * hidden**2 + 2 * hidden * intermediate)
    attention = sum(4 * length**2 * hidden for length in lengths)
    return 3.0 * layers * (products + attention)


def measure_product_speed(device: str, precision: str, hidden: int, intermediate: int) -> float:
    """Return the operations per second of the fastest matrix product of a model with these sizes."""
    import torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    compute_device = Device(device)
    repeats = 1 if compute_device.is_cpu else 20  # on a GPU, a single product is too short to time
    best_speed = 0.0
    for rows in _ROWS:
        for inputs, outputs in ((hidden, hidden), (hidden, intermediate), (intermediate, hidden)):
            texts = torch.ones(rows, inputs, dtype=dtype, device=device)
            weights = torch.ones(outputs, inputs, dtype=dtype, device=device)
            for _ in range(4):  # the first round warms up
                start = time.perf_counter()
                for _ in range(repeats):
                    result = torch.nn.functional.linear(texts, weights)  # noqa: F841  XLA computes nothing that is dropped
                compute_device.synchronize()
                best_speed = max(best_speed, repeats * 2 * rows * inputs * outputs / (time.perf_counter() - start))
    return best_speed


@dataclass(frozen=True)
class Timing:
    """Timing of a function."""

    rounds: list[list[float]]
    """Seconds in each round for each item of work. Shape: (rounds, items)."""

    @property
    def seconds(self) -> list[float]:
        """Seconds of the fastest round for each item, because other programs can only slow a round down."""
        return [min(item_seconds) for item_seconds in zip(*self.rounds, strict=True)]

    def totals(self, items: slice = slice(None)) -> list[float]:
        """Return the seconds of each round for some items."""
        return [sum(seconds[items]) for seconds in self.rounds]

    def spread(self, items: slice = slice(None)) -> float:
        """Return how much longer the slowest round took than the fastest, as a fraction of the fastest."""
        totals = self.totals(items)
        return max(totals) / min(totals) - 1


def compute_speedup(first: Timing, second: Timing, items: slice = slice(None)) -> float | None:
    """Return the speedup of the second function over the first, or None if it differs too much between rounds.

    >>> steady, busy = Timing([[2.0], [2.1]]), Timing([[9.0], [1.0]])
    >>> compute_speedup(steady, Timing([[1.0], [1.1]])), compute_speedup(busy, steady)
    (2.0, None)
    """
    rounds = zip(first.totals(items), second.totals(items), strict=True)
    ratios = [first_seconds / second_seconds for first_seconds, second_seconds in rounds]
    if max(ratios) / min(ratios) - 1 > STEADY:
        return None
    return sum(first.seconds[items]) / sum(second.seconds[items])


def describe_spreads(spreads: Iterable[float | None]) -> list[str]:
    """Return a note if times vary between rounds, or else an empty list.

    >>> describe_spreads([0.1, None]), describe_spreads([0.1, 0.31])
    ([], ['timing varies by up to 31% between rounds: close other programs and repeat'])
    """
    largest = max((value for value in spreads if value is not None), default=0.0)
    note = f"timing varies by up to {largest:.0%} between rounds: close other programs and repeat"
    return [note] if largest > STEADY else []


def time_interleaved(runs: Sequence[Callable[[Any], object]], work: Sequence[Any]) -> list[Timing]:
    """Measure the seconds that each function takes for each item of work, in several rounds.

    Functions alternate for every item. Each runs at least twice in a row, and the fastest run counts: the first run is
    slow because the other functions have filled the processor's caches.
    """
    timings = [Timing([]) for _ in runs]
    with stage("timing", _ROUNDS * len(work)):
        for round_index in range(_ROUNDS):
            for timing in timings:
                timing.rounds.append([])
            for index, item in enumerate(work):
                for run, timing in zip(runs, timings, strict=True):
                    seconds = list[float]()
                    while len(seconds) < _IN_A_ROW or sum(seconds) < _MIN_SECONDS:
                        seconds.append(_time(run, item))
                    timing.rounds[round_index].append(min(seconds))
                get_progress().update(round_index * len(work) + index + 1, {})
    return timings


class InferenceSpeed(NamedTuple):
    """Inference speed of a model."""

    row_seconds: float
    """Mean seconds per row if rows are computed one at a time."""
    rows_per_second: float
    """Rows per second in batches."""
    spread: float
    """The larger `Timing.spread` of single rows and of batches."""


def measure_speed(
    runs: Sequence[Callable[[Any], object]], singles: Sequence[Any], batches: Sequence[Any], rows: int
) -> list[InferenceSpeed]:
    """Measure the speed of each function on single rows, and on batches with `rows` rows in total."""
    single, batched = slice(len(singles)), slice(len(singles), None)
    return [
        InferenceSpeed(
            mean(timing.seconds[single]),
            rows / sum(timing.seconds[batched]),
            max(timing.spread(single), timing.spread(batched)),
        )
        for timing in time_interleaved(runs, [*singles, *batches])
    ]


def _time(run: Callable[[Any], object], item: object) -> float:
    # Exported models run without torch.
    device = find_device() if "torch" in sys.modules else Device("cpu")
    start = time.perf_counter()
    run(item)
    device.synchronize()
    return time.perf_counter() - start
