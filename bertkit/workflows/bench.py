"""Measure how fast this machine trains a model with a recipe, before the training starts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bertkit.errors import StoppedError, UsageError
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.scoring import run_model, run_part
from bertkit.hardware.launch import check_not_launched
from bertkit.hardware.precision import ComputeConfig, use_matmul_backend
from bertkit.hardware.process import is_memory_error, peak_memory, restart_peak_memory
from bertkit.modeling.architectures import detect_machine
from bertkit.modeling.checkpoint import get_loaded_weight_bytes, read_config
from bertkit.modeling.info import Model
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import Progress, ProgressWrapper, stage, use_progress, with_progress
from bertkit.recipe.records import Recipe
from bertkit.tokens.features import Feature, Features, TaskContext, text_lengths
from bertkit.training.auto_settings import choose_training
from bertkit.training.run import find_machine
from bertkit.training.stopping import StopFlag, handle_signals
from bertkit.workflows.finetune import load_model, training_job
from bertkit.workflows.finetune_data import FinetuneData, read_finetune_data

# Limits of the measurement before a run.
_MAX_ROWS, _MAX_STEPS, _MAX_SECONDS = 8192, 10, 30.0
_EVAL_TOKENS = 8192  # in the validation rows that the forward pass is timed on


@dataclass(frozen=True)
class Speed:
    """Speed of one precision and batch size, with None for values that were not measured."""

    precision: str
    batch_size: int
    steps: int = 0
    """Number of timed steps, which follow some warm-up steps."""
    tokens_per_second: float | None = None
    """Median over the timed steps, without padding tokens."""
    rows_per_second: float | None = None
    padding_share: float | None = None
    peak_memory_bytes: int | None = None
    evaluation_rows_per_second: float | None = None
    epoch_seconds: float | None = None
    recipe_seconds: float | None = None
    """Estimate for tokenizing, training and evaluating, without startup, scoring and saving."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bench:
    """Measured speeds, and the rows (windows of long texts) and tokens (without padding) of one epoch."""

    recipe: str
    model: str
    device: str
    threads: int
    rows: int
    tokens: int
    epochs: float
    speeds: list[Speed]

    @property
    def fastest(self) -> Speed | None:
        """The speed with the most tokens per second, or None if fewer than two were measured."""
        timed = [speed for speed in self.speeds if speed.tokens_per_second is not None]
        return max(timed, key=lambda speed: speed.tokens_per_second or 0.0) if len(timed) > 1 else None


@dataclass(frozen=True)
class _EncodedRows:
    """Features of all rows of each split, or of a sample of them."""

    features: Mapping[str, list[Feature]]
    seconds: float
    """Time for tokenizing."""
    scale: Mapping[str, float]
    """Split -> rows of the complete run per encoded row; 1 if all rows are encoded."""


class _StoppableProgress(ProgressWrapper):
    """Progress that raises an error after a signal, so that temporary folders are removed."""

    def __init__(self, stop: StopFlag) -> None:
        super().__init__()
        self.stop = stop

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Report the number of steps done, or stop."""
        super().update(done, figures)
        if self.stop.signal:
            raise StoppedError("stopped; nothing is left behind", signal=self.stop.signal)


@with_progress
def bench(recipes: Sequence[Recipe], *, steps: int = 20, progress: Progress | None = None) -> Bench:
    """Time some steps of real training for each recipe; recipes may differ in batch size and precision only.

    A recipe whose precision is ``auto`` is measured in each precision that is fast on this machine. Nothing is
    scored, saved or left on disk.

    Raises:
        UsageError: If there are no steps, a batch is larger than all training rows, or there are several processes.
    """
    # 1. Read the rows.
    if steps < 1:
        raise UsageError(f"--steps {steps}", "give at least 1")
    check_not_launched("bench measures one process", "start it without torchrun or accelerate launch")
    with stage("reading the data", total=1):
        data = read_finetune_data(recipes[0], None)
    with stage("loading torch and transformers"):
        context = TaskContext(recipes[0], load_tokenizer(data.model_folder), data.labels)
    import torch

    # 2. Encode the rows once: batch size and precision do not change features.
    rows = _encode(data, context)
    train, config = rows.features["train"], read_config(data.model_folder)
    recipes = [choose_training(recipe, data.rows, len(data.labels), config)[0] for recipe in recipes]
    for recipe in recipes:
        if recipe.training.batch_size > len(train):
            message = f"a batch of {recipe.training.batch_size} is larger than all {len(train)} training rows"
            raise UsageError(message, f"give --batch-size at most {len(train)}")

    # 3. Find the precisions to measure. Detect each only once, because `detect_machine` runs a trial.
    detect = partial(detect_machine, model_type=data.plan.model_type, widths=data.plan.widths)
    machines = dict[str, list[ComputeConfig]]()
    for precision in dict.fromkeys(recipe.training.precision for recipe in recipes):
        machine = detect(precision)
        machine.announce()
        compares_fp32 = precision == "auto" and machine.precision == "bf16"
        machines[precision] = [detect("fp32"), machine] if compares_fp32 else [machine]

    # 4. Measure.
    with handle_signals() as stop, use_progress(_StoppableProgress(stop)):
        speeds = [
            _measure(replace(data, recipe=recipe), replace(context, recipe=recipe), rows, machine, steps)
            for recipe in recipes
            for machine in machines[recipe.training.precision]
        ]
    recipe, device = recipes[0], machines[recipes[0].training.precision][0].device
    tokens, threads = _count_tokens(train), torch.get_num_threads()
    return Bench(recipe.name, recipe.model, device, threads, len(train), tokens, recipe.training.epochs, speeds)


def measure_sample(data: FinetuneData, context: TaskContext, model: Model) -> Speed:
    """Time a few training steps of a model on some rows of a run, and estimate the time for all of its rows.

    Raises:
        BertkitError: If the first steps of the run fail.
    """
    # Take every n-th row, because files can be sorted by label or length; -(-a // b) rounds a / b up.
    splits = {
        name: split.select(range(0, len(split.rows), -(-len(split.rows) // _MAX_ROWS)))
        for name, split in data.splits.items()
    }
    machine = find_machine(data.plan)
    machine.announce()
    with handle_signals() as stop, use_progress(_StoppableProgress(stop)):
        rows = _encode(replace(data, splits=splits), context)
        scale = {name: len(split.rows) / len(splits[name].rows) for name, split in data.splits.items()}
        sample, rows = replace(data, splits=splits), replace(rows, scale=scale)
        return _measure(sample, context, rows, machine, _MAX_STEPS, _MAX_SECONDS, model)


def _encode(data: FinetuneData, context: TaskContext) -> _EncodedRows:
    start = time.perf_counter()
    with stage("tokenizing"):
        features = {name: data.task.encode(split.rows, context) for name, split in data.splits.items()}
    return _EncodedRows(features, time.perf_counter() - start, dict.fromkeys(features, 1.0))


def _measure(
    data: FinetuneData,
    context: TaskContext,
    rows: _EncodedRows,
    machine: ComputeConfig,
    steps: int,
    seconds: float = math.inf,
    model: Model | None = None,
) -> Speed:
    """Load, prepare, train and evaluate a model as a run does, and estimate the time of the complete run.

    Args:
        data: Rows of the run.
        context: Recipe, tokenizer and labels.
        rows: Encoded rows.
        machine: Device and precision.
        steps: Maximum number of steps to time.
        seconds: Time limit; after it, no further step is timed.
        model: Model to train, or None to load it.
    """
    from bertkit.modeling.depths import configure_layers
    from bertkit.training.timing import time_steps, training_to_time

    use_matmul_backend(machine)
    training, validation = context.recipe.training, data.validation.name
    # `precompute` can add values to features, so each measurement gets copies.
    features = {name: [dict(feature) for feature in split] for name, split in rows.features.items()}
    speed = Speed(machine.precision, training.batch_size)
    try:
        with _temporary_cache():
            # 1. Load the model.
            can_measure_memory = restart_peak_memory(machine.device)
            model = (load_model(data, context) if model is None else model).to(machine.device)
            if training.layer_keys:
                configure_layers(model, training)
            checkpoint = Checkpoint(model, data.task, context, machine)

            # 2. Prepare the features. Some tasks only run the encoder here, and train nothing.
            start = time.perf_counter()
            trains_nothing = data.task.precompute(model, features, context, partial(run_part, checkpoint))
            prepare_seconds = rows.seconds + time.perf_counter() - start

            # 3. Train for some steps.
            timed_steps = []
            if trains_nothing:
                speed = replace(speed, notes=(f"{context.recipe.name} trains nothing: it only prepares and evaluates",))
            else:
                few_steps = training_to_time(training, len(features["train"]), steps)
                timed_data = replace(data, recipe=context.recipe.model_copy(update={"training": few_steps}))
                start = time.perf_counter()
                with training_job(timed_data, checkpoint, features["train"], lambda model, step: {}) as job:
                    # Teachers have predicted all rows when the block starts.
                    prepare_seconds += time.perf_counter() - start
                    timed_steps = time_steps(job, few_steps, machine, steps=steps, seconds=seconds)

            # 4. Evaluate a sample of all lengths. The first pass warms up.
            sample = features[validation][:: max(1, _count_tokens(features[validation]) // _EVAL_TOKENS)]
            for _ in range(2):
                start = time.perf_counter()
                run_model(checkpoint, sample, "evaluating")
                rows_per_second = len(sample) / (time.perf_counter() - start)
            memory = peak_memory(machine.device) if can_measure_memory else None
            # At its end, a run loads the weights of its best checkpoint in addition to the weights in memory.
            if memory is not None and machine.device == "cpu":
                memory += get_loaded_weight_bytes(data.model_folder)
    except (MemoryError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        return replace(speed, notes=(f"{speed.precision}, batch {speed.batch_size}: out of memory",))

    # 5. Estimate the time of all rows; `rows.scale` is above 1 if only a sample of them is encoded.
    speed = replace(speed, peak_memory_bytes=memory, evaluation_rows_per_second=rows_per_second)
    prepare_seconds *= rows.scale["train"]
    evaluation_seconds = rows.scale[validation] * len(features[validation]) / rows_per_second
    if not timed_steps:
        return replace(speed, recipe_seconds=prepare_seconds + evaluation_seconds)
    # Medians of steps: a mean would include the pauses that other programs cause.
    tokens_per_second = 1 / median(step.seconds / sum(step.lengths) for step in timed_steps)
    tokens = sum(sum(step.lengths) for step in timed_steps)
    epoch_seconds = rows.scale["train"] * _count_tokens(features["train"]) / tokens_per_second
    train_rows = round(rows.scale["train"] * len(features["train"]))
    total_steps = training.total_steps(train_rows)
    epochs = total_steps / training.steps_per_epoch(train_rows)
    count_evaluations = training.count_evaluations(total_steps, train_rows)
    return replace(
        speed,
        steps=len(timed_steps),
        tokens_per_second=tokens_per_second,
        rows_per_second=tokens_per_second * sum(step.rows for step in timed_steps) / tokens,
        padding_share=1 - tokens / sum(step.padded_tokens for step in timed_steps),
        epoch_seconds=epoch_seconds,
        recipe_seconds=prepare_seconds + epochs * epoch_seconds + count_evaluations * evaluation_seconds,
    )


@contextmanager
def _temporary_cache() -> Iterator[None]:
    """Use a temporary cache inside the `with` block, so that no later training reads these hidden states."""
    previous_cache = os.environ.get("BERTKIT_CACHE")
    with TemporaryDirectory(prefix="bertkit-bench-") as folder:
        os.environ["BERTKIT_CACHE"] = folder
        try:
            yield
        finally:
            del os.environ["BERTKIT_CACHE"]
            if previous_cache is not None:
                os.environ["BERTKIT_CACHE"] = previous_cache


def _count_tokens(features: Features) -> int:
    return sum(length for feature in features for length in text_lengths(feature))
