"""Time some steps of the training that `fit` does, and stop before it evaluates or saves anything."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from bertkit.hardware.device import Device
from bertkit.hardware.precision import ComputeConfig
from bertkit.progress import ProgressWrapper, use_progress
from bertkit.recipe.sections import BaseTrainingConfig
from bertkit.tokens.features import Features, text_lengths
from bertkit.training.fit import fit
from bertkit.training.stopping import StopFlag
from bertkit.training.trainer import TrainingJob

_WARM = 3  # steps before the first timed step
_NEVER = 2**40
_Training = TypeVar("_Training", bound=BaseTrainingConfig)


@dataclass(frozen=True)
class TimedStep:
    """A timed optimizer step: its rows, the number of tokens per text, and the number of tokens with padding."""

    seconds: float
    rows: int
    lengths: list[int]
    padded: int


class _Enough(Exception):
    """Exception that leaves training between two steps; a regular stop would evaluate and save first."""


class _Stopwatch(ProgressWrapper):
    """Progress that stores when training steps end, and raises `_Enough` after the last step to time."""

    def __init__(self, title: str, steps: int, seconds: float, device: Device) -> None:
        super().__init__()
        self.title, self.last, self.device = title, _WARM + steps, device
        self.seconds, self.start_time = seconds, math.inf
        self.is_open = False
        self.marks: list[Any] = []

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Start counting steps."""
        self.is_open, self.start_time = True, time.perf_counter()
        self.progress.start(self.title, self.last)

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Store the end of a step."""
        self.marks.append(self.device.mark())
        self.progress.update(done, figures)
        passed = time.perf_counter() - self.start_time
        if done >= self.last or (done > _WARM and passed > self.seconds):
            raise _Enough

    def record(self, entry: Mapping[str, Any]) -> None:
        """Ignore the entry: steps that are only timed do not belong in a training log."""

    def finish(self) -> None:
        """Finish the progress line if training has started."""
        if self.is_open:
            self.is_open = False
            self.progress.finish()

    def read(self) -> list[float]:
        """Return the seconds of each timed step."""
        # Marks are the ends of steps (warm-up + steps,). The first timed step begins at the last mark of the warm-up.
        return self.device.seconds_between(self.marks[_WARM - 1 :])


def training_to_time(training: _Training, rows: int, steps: int) -> _Training:
    """Return a training section that lasts for `steps` timed steps over `rows` rows per epoch.

    It has no evaluations, and no custom callbacks, which could write results of a run that does not exist.
    """
    epochs = max(training.epochs, math.ceil((_WARM + steps) / training.steps_per_epoch(rows)))
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
        seconds: Time after which no further step is timed, except the first.
    """
    watch = _Stopwatch(f"{machine.precision}, batch {training.batch_size}", steps, seconds, Device(machine.device))
    batches: list[tuple[int, list[int], int]] = []

    def collate_and_note(features: Features) -> dict[str, torch.Tensor]:
        batch = job.data_collator(features)
        if watch.is_open:  # The trial of micro-batches before the first step is not timed.
            lengths = [length for feature in features for length in text_lengths(feature)]
            batches.append((len(features), lengths, batch["input_ids"].numel()))
        return batch

    timed = replace(job, data_collator=collate_and_note)
    try:
        with suppress(_Enough), TemporaryDirectory(prefix="bertkit-timing-") as folder, use_progress(watch):
            fit(timed, training, machine, Path(folder), stop=StopFlag())
    finally:
        watch.finish()
    count = training.gradient_accumulation  # The collator makes micro-batches.
    return [
        # `batches` are in the order of the steps. Batches of the warm-up, and batches that the loader prefetched, are
        # left out.
        _add_up(seconds, batches[step * count : (step + 1) * count])
        for step, seconds in enumerate(watch.read(), start=_WARM)
    ]


def _add_up(seconds: float, micro_batches: Sequence[tuple[int, list[int], int]]) -> TimedStep:
    rows, lengths, padded = zip(*micro_batches, strict=True)
    return TimedStep(seconds, sum(rows), [length for row in lengths for length in row], sum(padded))
