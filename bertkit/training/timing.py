"""Time some steps of `fit`, and stop it before it evaluates or saves anything."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from bertkit.hardware.device import Device
from bertkit.hardware.precision import ComputeConfig
from bertkit.progress import ProgressWrapper, use_progress
from bertkit.recipe.sections import BaseTrainingConfig
from bertkit.tokens.features import Features, Tensors, text_lengths
from bertkit.training.fit import fit
from bertkit.training.stopping import StopFlag
from bertkit.training.trainer import TrainingJob

_WARM_UP = 3  # steps
_NEVER = 2**40
_Training = TypeVar("_Training", bound=BaseTrainingConfig)


@dataclass(frozen=True)
class TimedStep:
    """A timed optimizer step."""

    seconds: float
    rows: int
    lengths: list[int]
    """Number of tokens per text, without padding."""
    padded_tokens: int
    """Number of tokens in the batch, padding included."""


class _TimingDone(Exception):
    """Exception that ends training between two steps; a regular stop would evaluate and save first."""


class _Stopwatch(ProgressWrapper):
    """Progress that stores when training steps end, and raises `_TimingDone` after the last step to time."""

    def __init__(self, title: str, steps: int, seconds: float, device: Device) -> None:
        super().__init__()
        self.title, self.last_step, self.device = title, _WARM_UP + steps, device
        self.max_seconds, self.start_time = seconds, math.inf
        self.is_running = False
        self.step_ends: list[Any] = []

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Start counting steps."""
        self.is_running, self.start_time = True, time.perf_counter()
        self.progress.start(self.title, self.last_step)

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Store the end of a step."""
        self.step_ends.append(self.device.mark())
        self.progress.update(done, figures)
        elapsed = time.perf_counter() - self.start_time
        if done >= self.last_step or (done > _WARM_UP and elapsed > self.max_seconds):
            raise _TimingDone

    def record(self, entry: Mapping[str, Any]) -> None:
        """Ignore the entry: steps that are only timed are not logged."""

    def finish(self) -> None:
        """Finish the progress line if training has started."""
        if self.is_running:
            self.is_running = False
            self.progress.finish()

    def read(self) -> list[float]:
        """Return the seconds of each timed step."""
        # The first timed step begins at the end of the last warm-up step.
        return self.device.seconds_between(self.step_ends[_WARM_UP - 1 :])


def training_to_time(training: _Training, rows: int, steps: int) -> _Training:
    """Return a copy of a training section that is long enough for `steps` timed steps, with `rows` rows per epoch.

    The copy has no evaluations, and no custom callbacks, because they could write results of a run that does not exist.
    """
    epochs = max(training.epochs, math.ceil((_WARM_UP + steps) / training.steps_per_epoch(rows)))
    update = {"epochs": epochs, "steps": None, "evaluate_every": _NEVER, "callbacks": None}
    return training.model_copy(update=update)


def time_steps(
    job: TrainingJob, training: BaseTrainingConfig, machine: ComputeConfig, *, steps: int, seconds: float = math.inf
) -> list[TimedStep]:
    """Train a model for some steps after a warm-up, and return the time of each step.

    Rows, their order and the loss are the same as in `fit`. A temporary folder gets a log and no checkpoint.

    Args:
        job: Model and data, with enough batches for the steps.
        training: Result of `training_to_time`.
        machine: Device and precision.
        steps: Number of steps to time.
        seconds: Time after which no further step is timed; the first step is always timed.
    """
    stopwatch = _Stopwatch(f"{machine.precision}, batch {training.batch_size}", steps, seconds, Device(machine.device))
    batches: list[tuple[int, list[int], int]] = []

    def collate_and_record(features: Features) -> Tensors:
        batch = job.data_collator(features)
        if stopwatch.is_running:  # The trial of micro-batches before the first step is not timed.
            lengths = [length for feature in features for length in text_lengths(feature)]
            batches.append((len(features), lengths, batch["input_ids"].numel()))
        return batch

    timed_job = replace(job, data_collator=collate_and_record)
    try:
        with suppress(_TimingDone), TemporaryDirectory(prefix="bertkit-timing-") as folder, use_progress(stopwatch):
            fit(timed_job, training, machine, Path(folder), stop=StopFlag())
    finally:
        stopwatch.finish()
    count = training.gradient_accumulation  # calls of the collator per step
    return [
        # Batches of the warm-up come first, and batches that the loader prefetched come last; both are left out.
        _add_up(seconds, batches[step * count : (step + 1) * count])
        for step, seconds in enumerate(stopwatch.read(), start=_WARM_UP)
    ]


def _add_up(seconds: float, micro_batches: Sequence[tuple[int, list[int], int]]) -> TimedStep:
    rows, lengths, padded_tokens = zip(*micro_batches, strict=True)
    return TimedStep(seconds, sum(rows), [length for part in lengths for length in part], sum(padded_tokens))
