"""The TrainingArguments of a run: what the recipe decides, what bertkit decides, and what is left to the user."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from transformers import TrainingArguments

from bertkit.errors import RecipeError, UsageError, closest
from bertkit.hardware.device import Device, check_accelerate, lead_accelerate
from bertkit.hardware.precision import Machine
from bertkit.recipe import CommonTraining
from bertkit.recipe.values import decided_arguments, other_names
from bertkit.training.trackers import tracking_arguments


def make_arguments(
    training: CommonTraining,
    machine: Machine,
    folder: Path,
    rows: int | None,
    best_metric: str,
    greater_is_better: bool,
) -> TrainingArguments:
    """Build the arguments of one process; the batch size in them is its share of a micro-batch.

    Raises:
        RecipeError: `training.extra` is wrong.
        UsageError: the batch size cannot be divided.
        UnavailableError: Accelerate takes another device, or XLA has several.
    """
    check_extra(training)
    lead_accelerate(machine.device)
    decided = {
        "output_dir": str(folder),
        "num_train_epochs": training.epochs,
        "max_steps": training.steps or -1,  # takes the place of epochs
        "per_device_train_batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.schedule,
        # transformers 5 has no warmup_ratio: below 1, this is a share of steps
        "warmup_steps": training.warmup_ratio,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "seed": training.seed,
        "use_cpu": machine.device == "cpu",
        "gradient_accumulation_steps": training.gradient_accumulation,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_steps": 2**40,  # `TrainingCallback` says when
        "metric_for_best_model": best_metric,
        "greater_is_better": greater_is_better,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "report_to": [],  # `fit` adds the callbacks
    }
    fused = {} if Device(machine.device).has_fused_optimizer else {"optim": "adamw_torch"}
    defaults = {"ddp_find_unused_parameters": False, **fused, **tracking_arguments(folder)}
    try:
        arguments = TrainingArguments(**{**decided, **defaults, **training.extra})
    except (TypeError, ValueError) as error:
        raise RecipeError(f"training.extra is wrong: {error}", "see transformers' TrainingArguments") from None
    check_accelerate(arguments.device.type, machine.device)
    if machine.precision == "bf16":  # TrainingArguments know few devices that have it, and a trial has shown it here
        arguments.bf16, arguments.mixed_precision = True, "bf16"
    arguments.output_dir = str(folder)  # TrainingArguments expand a `~` that bertkit has taken for a name
    if training.gradient_checkpointing:
        arguments.activation_checkpointing = True
    if training.schedule == "warmup_stable_decay":  # transformers wants to know its steps
        steps = training.total_steps(rows)
        decay = min(math.ceil(training.decay_share * steps), steps - arguments.get_warmup_steps(steps))
        arguments.lr_scheduler_kwargs = {"num_decay_steps": decay, **(arguments.lr_scheduler_kwargs or {})}
    check_batch(training, rows, arguments.world_size)
    arguments.per_device_train_batch_size //= arguments.world_size * training.gradient_accumulation
    arguments._n_gpu = min(arguments.n_gpu, 1)  # several GPUs are used by launching several processes
    return arguments


def check_batch(training: CommonTraining, rows: int | None, processes: int) -> None:
    """Check that every batch can be divided evenly; the number of rows may be unknown.

    Raises:
        UsageError: the batch size is no multiple of processes times micro-batches, or there are too few rows.
    """
    shares = processes * training.gradient_accumulation
    if training.batch_size % shares:
        among = f"{processes} process(es) with {training.gradient_accumulation} micro-batch(es) each"
        what = f"batch_size {training.batch_size} cannot be divided among {among}"
        raise UsageError(what, f"make it a multiple of {shares}")
    if rows is not None and rows // training.steps_per_epoch(rows) < shares:
        what = f"{rows} rows are too few for {shares} shares of a batch"
        raise UsageError(what, "use fewer processes or micro-batches")


def check_extra(training: CommonTraining) -> None:
    """Check that `training.extra` names fields of TrainingArguments that nothing else decides.

    Raises:
        RecipeError: an unknown field, or one that a recipe key sets.
    """
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    for name in training.extra:
        if decided := decided_arguments().get(name):
            raise RecipeError(f"training.extra.{name} is decided by {decided}", "leave it out")
        if name not in fields:
            remedy = f"write {other_names()[name]}" if name in other_names() else closest(name, fields)
            raise RecipeError(f"TrainingArguments has no field {name!r}", remedy)
