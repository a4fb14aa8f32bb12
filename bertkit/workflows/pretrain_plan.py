"""Estimate time and memory of a pretraining run from a few timed steps, for a dry run or a budget of time."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.hardware.precision import ComputeConfig, use_matmul_backend
from bertkit.hardware.process import peak_memory, restart_peak_memory
from bertkit.hardware.speed import count_training_operations, measure_product_speed
from bertkit.modeling.architectures import detect_machine, get_layer_sizes
from bertkit.modeling.info import Model
from bertkit.progress import log
from bertkit.recipe.records import PretrainRecipe
from bertkit.recipe.sections import PretrainingConfig
from bertkit.storage import runs
from bertkit.storage.checkpoints import max_disk_usage, written_bytes
from bertkit.storage.files import check_space
from bertkit.training.auto_settings import MIN_PRETRAINING_BATCH, choose_batch, choose_pretraining_rate
from bertkit.training.losses import LossTerms
from bertkit.training.stopping import max_over_processes
from bertkit.workflows.pretrain_data import PretrainData, read_pretrain_data

if TYPE_CHECKING:
    from bertkit.training.pretrain_batches import PretrainBatches
    from bertkit.training.timing import TimedStep


_MAX_STEPS = 10**6  # more steps than any measurement takes
_STEPS_PER_BATCH = 3  # timed steps per batch size that is tried


@dataclass(frozen=True)
class PretrainEstimate:
    """Time, memory and disk space that a pretraining run would take, estimated from a few timed steps."""

    recipe: str
    parameters: int
    examples: int
    steps: int | None
    """Number of steps, or None if the run ends by the clock."""
    tokens: int
    seconds: float
    tokens_per_second: float
    memory_mb: float | None
    peak_share: float | None
    """Operations per second, as a fraction of the speed of this machine's fastest matrix products."""
    corpus: dict[str, dict[str, Any]]
    folder: str
    disk_bytes: int
    """Maximum size of the run folder during the run."""
    budget_settings: dict[str, Any] = field(default_factory=dict)
    """Key of `training` -> value, as `fit_to_budget` returns it."""


def estimate(
    recipe: PretrainRecipe, *, output: str | Path | None = None, restart: bool = False, steps: int = 10
) -> PretrainEstimate:
    """Prepare the corpus, time some steps of each block length, and estimate the run; only the corpus stays on disk.

    Raises:
        BertkitError: If an error of the run can be foreseen, such as a disk that is too small.
    """
    from bertkit.training.pretrain_batches import PretrainBatches

    # 1. Prepare the run as `pretrain` does, up to its first step, and check the disk.
    data = read_pretrain_data(recipe, output)
    runs.check_run_can_start(data.plan.folder, data.plan.identity, restart=restart)
    machine = detect_machine(recipe.training.precision, data.plan.model_type, data.plan.widths)
    machine.announce()
    use_matmul_backend(machine)
    settings = fit_to_budget(data, machine)
    data = data.with_training(settings)
    context, training = data.context, data.context.recipe.training
    batches = PretrainBatches(data.corpus["train"], data.objective, context)
    restart_peak_memory(machine.device)
    model = data.load_model()
    disk_bytes = _check_disk_space(data.plan.folder, model, training, batches)

    # 2. Time some steps. For each block length, `amounts` has the seconds of a budget, or else the tokens of all steps.
    #    The operations of a teacher are not counted.
    sizes = None if hasattr(model, "teacher") else get_layer_sizes(context.config)
    seconds = operations = tokens = 0.0
    budget = training.budget_seconds
    amounts = _divide_budget(budget, training) if budget else batches.count_tokens_by_length(batches.steps)
    # Time each block length separately, because the cost of attention grows with the square of the length.
    for length, amount in amounts.items():
        timed_steps = _time_steps(data, model, batches.select_length(length, _MAX_STEPS), machine, steps)
        lengths = [length for step in timed_steps for length in step.lengths]
        timed_seconds = sum(step.seconds for step in timed_steps)
        factor = amount / (timed_seconds if budget else sum(lengths))
        tokens += factor * sum(lengths)
        seconds += factor * timed_seconds
        operations += factor * count_training_operations(sizes, lengths) if sizes else 0

    # 3. Compare the speed with the fastest matrix products of this machine.
    memory = peak_memory(machine.device)
    fastest = measure_product_speed(machine.device, machine.precision, *sizes[1:]) if sizes else None
    return PretrainEstimate(
        recipe=recipe.name,
        parameters=model.num_parameters(),
        examples=batches.sizes[training.max_length],
        steps=None if budget else batches.steps,
        tokens=round(tokens),
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        memory_mb=None if memory is None else memory / 1e6,
        peak_share=operations / seconds / fastest if fastest else None,
        corpus={name: dict(split.counts) for name, split in data.corpus.items()},
        folder=str(data.plan.folder),
        disk_bytes=disk_bytes,
        budget_settings=settings,
    )


def fit_to_budget(data: PretrainData, machine: ComputeConfig) -> dict[str, Any]:
    """Choose the batch size and the learning rate for a time budget on this machine, from a few timed steps.

    Returns:
        Key of `training` -> its value. The dictionary is empty without a budget, if the user set the batch size or the
        learning rate, or if the budget is long enough for the batch size of the recipe.
    """
    from bertkit.training.pretrain_batches import PretrainBatches

    context, training = data.context, data.context.recipe.training
    max_batch, user_keys = training.batch_size, {"batch_size", "learning_rate"} & training.model_fields_set
    if training.budget_seconds is None or user_keys or max_batch <= MIN_PRETRAINING_BATCH:
        return {}
    model, batches = data.load_model(), PretrainBatches(data.corpus["train"], data.objective, context)
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    blocks_per_second = 0.0

    def split_batch(batch: int) -> dict[str, Any]:
        # Micro-batches are not larger than the recipe's, so they need no more memory.
        count = max(1, training.gradient_accumulation * batch // max_batch)
        return {"batch_size": batch, "gradient_accumulation": math.gcd(count, batch // num_processes)}

    def time_step(batch: int) -> float:
        # All processes must choose the same batch size, so they use the time of the slowest process.
        nonlocal blocks_per_second
        settings = split_batch(batch)
        timed_batches = batches.select_length(training.short_length or training.max_length, _MAX_STEPS)
        timed_batches.training = timed_batches.training.model_copy(update=settings)
        steps = _time_steps(data.with_training(settings), model, timed_batches, machine, _STEPS_PER_BATCH)
        seconds = max_over_processes(sum(step.seconds for step in steps) / len(steps))
        blocks_per_second = batch / seconds
        return seconds

    batch = choose_batch(training.budget_seconds, max_batch, time_step, num_processes)
    if batch == max_batch:
        return {}
    settings = {**split_batch(batch), **_choose_rate(data)}
    blocks = training.budget_seconds * blocks_per_second
    log.info(
        f"in {training.budget}, this machine trains about {blocks / batch:,.0f} steps of {batch} blocks, or "
        f"{blocks / max_batch:,.0f} of the recipe's {max_batch}: using batch_size {batch} and learning_rate "
        f"{settings.get('learning_rate', training.learning_rate):g}; --batch-size and --learning-rate change them"
    )
    return settings


def _choose_rate(data: PretrainData) -> dict[str, float]:
    """Choose a learning rate and its warmup; the dictionary is empty if the recipe's values are better."""
    sizes, training = get_layer_sizes(data.context.config), data.context.recipe.training
    # A checkpoint would forget with a high rate. The loss of ELECTRA has a term with a high weight, which needs the
    # rate in its recipe.
    if not sizes or data.context.model_folder is not None or max(data.objective.LOSS_TERMS.values()) > 1:
        return {}
    is_user_value = "warmup_ratio" in training.model_fields_set
    warmup = training.warmup_ratio if is_user_value else max(training.warmup_ratio, PretrainingConfig().warmup_ratio)
    return {"learning_rate": choose_pretraining_rate(*sizes[:2]), "warmup_ratio": warmup}


def _check_disk_space(folder: Path, model: Model, training: PretrainingConfig, batches: PretrainBatches) -> int:
    """Return the bytes that the run needs on disk, and check that they are free."""
    weight_bytes = sum(weights.nbytes for weights in model.parameters())
    trained_bytes = sum(weights.nbytes for weights in model.parameters() if weights.requires_grad)
    # A checkpoint has the weights, and two moments of AdamW for each weight that is trained.
    checkpoint_bytes = weight_bytes + 2 * trained_bytes
    training = training.model_copy(update={"steps": batches.steps})
    saves = 10 if training.budget else training.count_evaluations(batches.steps, batches.rows)
    disk_bytes = max_disk_usage(weight_bytes, checkpoint_bytes, saves, training.count_kept_checkpoints(saves))
    check_space(folder, disk_bytes - written_bytes(folder))
    return disk_bytes


def _divide_budget(seconds: float, training: PretrainingConfig) -> dict[int, float]:
    """Return the seconds of a budget for each block length."""
    if training.short_length is None:
        return {training.max_length: seconds}
    short_seconds = training.short_fraction * seconds
    return {training.max_length: seconds - short_seconds, training.short_length: short_seconds}


def _time_steps(
    data: PretrainData, model: Model, batches: PretrainBatches, machine: ComputeConfig, steps: int
) -> list[TimedStep]:
    from bertkit.training.timing import time_steps, training_to_time
    from bertkit.training.trainer import TrainingJob

    objective, context = data.objective, data.context
    terms = LossTerms(objective.LOSS_TERMS, objective.count, objective.sum_losses)
    job = TrainingJob(model, context.tokenizer, batches, objective.collator(context), terms)
    training = training_to_time(context.recipe.training, batches.sizes[context.recipe.training.max_length], steps)
    return time_steps(job, training, machine, steps=steps)
