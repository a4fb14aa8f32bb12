"""Settings of training that depend on recipe and machine: TrainingArguments, batch shapes, CUDA graphs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from transformers import PreTrainedModel, TrainingArguments

from bertkit.errors import RecipeError, did_you_mean
from bertkit.hardware.device import Device, check_accelerate, set_accelerate_device
from bertkit.hardware.precision import ComputeConfig
from bertkit.modeling.static_shapes import get_static_shapes, get_texts_per_row
from bertkit.progress import log
from bertkit.recipe.sections import NOT_CAPTURED, BaseTrainingConfig
from bertkit.recipe.validation import other_names, read_names
from bertkit.tokens.feature_cache import get_max_lengths
from bertkit.tokens.features import Collator
from bertkit.tokens.static_shapes import (
    MAX_WIDTHS,
    MAX_WIDTHS_CUDA_GRAPHS,
    MAX_WIDTHS_MICRO_BATCHES,
    ONE_TEXT,
    choose_widths,
    static_collator,
    training_rows,
)
from bertkit.training.batching import InMemoryBatches, check_batch
from bertkit.training.pretrain_batches import Batches, PretrainBatches
from bertkit.training.trackers import get_session

# With fewer tokens per step, an H100 computes a step faster than the CPU launches its kernels.
_MIN_TOKENS = 4096


def make_arguments(
    training: BaseTrainingConfig, machine: ComputeConfig, folder: Path, rows: int | None
) -> TrainingArguments:
    """Build the Trainer's arguments for this process; their batch size is the process's share of a micro-batch.

    Raises:
        RecipeError: If `training.extra` is wrong.
        UsageError: If the batch size cannot be divided among processes and micro-batches.
        UnavailableError: If Accelerate uses another device, or XLA has several processes.
    """
    check_extra(training)
    set_accelerate_device(machine.device)
    fixed_fields = {
        "output_dir": str(folder),
        "num_train_epochs": training.epochs,
        "max_steps": training.steps or -1,  # -1: num_train_epochs applies
        "per_device_train_batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": training.schedule,
        # transformers 5 has no warmup_ratio, but treats warmup_steps below 1 as a fraction of all steps.
        "warmup_steps": training.warmup_ratio,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "seed": training.seed,
        "use_cpu": machine.device == "cpu",
        "gradient_accumulation_steps": training.gradient_accumulation,
        "logging_nan_inf_filter": False,
        # `TrainingCallback` decides when to save, and which step is the best.
        "save_strategy": "no",
        "save_steps": 2**40,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        # `fit` adds the callbacks of trackers.
        "report_to": [],
    }
    defaults: dict[str, object] = {"ddp_find_unused_parameters": False}
    if not Device(machine.device).has_fused_optimizer:
        defaults["optim"] = "adamw_torch"
    if training.report_to and (session := get_session(folder)):
        defaults |= {"project": session.project, "run_name": session.name}
    try:
        arguments = TrainingArguments(**{**fixed_fields, **defaults, **training.extra})
    except (TypeError, ValueError) as error:
        raise RecipeError(f"training.extra is wrong: {error}", "see transformers' TrainingArguments") from None
    check_accelerate(arguments.device.type, machine.device)
    # TrainingArguments reject bf16 on most devices; `detect_machine` has already tried it on this device.
    if machine.precision == "bf16":
        arguments.bf16, arguments.mixed_precision = True, "bf16"
    # TrainingArguments expand `~`, but here it is part of a folder's name.
    arguments.output_dir = str(folder)
    if training.gradient_checkpointing:
        arguments.activation_checkpointing = True
    if training.fsdp:
        # Exchange gradients after every micro-batch. Otherwise, each process would keep the gradients of all weights.
        settings = arguments.accelerator_config
        kwargs = settings.gradient_accumulation_kwargs or {}
        settings.gradient_accumulation_kwargs = {**kwargs, "sync_each_batch": True}
    # transformers requires the number of steps in which the learning rate falls.
    if training.schedule == "warmup_stable_decay":
        steps = training.total_steps(rows)
        decay = min(math.ceil(training.decay_fraction * steps), steps - arguments.get_warmup_steps(steps))
        arguments.lr_scheduler_kwargs = {"num_decay_steps": decay, **(arguments.lr_scheduler_kwargs or {})}
    check_batch(training, rows, arguments.world_size)
    arguments.per_device_train_batch_size //= arguments.world_size * training.gradient_accumulation
    # The Trainer would use all GPUs from threads of this process. bertkit uses one process per GPU instead.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def check_extra(training: BaseTrainingConfig) -> None:
    """Check that `training.extra` names fields of TrainingArguments that no recipe key sets.

    Raises:
        RecipeError: If a field is unknown, or a recipe key sets it.
    """
    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    for name in training.extra:
        if recipe_key := read_names("training_arguments").get(name):
            raise RecipeError(f"training.extra.{name} is decided by {recipe_key}", "leave it out")
        if name not in fields:
            remedy = f"write {other_names()[name]}" if name in other_names() else did_you_mean(name, fields)
            raise RecipeError(f"TrainingArguments has no field {name!r}", remedy)


def choose_collator(
    collate: Collator,
    batches: Batches,
    model: PreTrainedModel,
    training: BaseTrainingConfig,
    arguments: TrainingArguments,
    *,
    graphs: bool,
) -> Collator:
    """Return a collator that pads batches to a few shapes if each shape needs a graph, or else `collate`.

    The widths are also stored with the model, because its evaluations use them.
    """
    device = Device(arguments.device.type)
    if device.shapes_may_change and not (training.torch_compile or graphs):
        return collate
    max_length, texts = training.max_length, ONE_TEXT
    if isinstance(batches, InMemoryBatches):
        texts = get_texts_per_row(model, batches.features)
        is_split = training.gradient_accumulation > 1 or batches.items is not None
        is_split = is_split or (texts.are_windows and texts.max_count > 1)
        max_widths = MAX_WIDTHS_CUDA_GRAPHS if graphs else MAX_WIDTHS_MICRO_BATCHES if is_split else MAX_WIDTHS
        widths = choose_widths(get_max_lengths(batches.features), max_widths)
    else:
        widths = tuple(sorted({max_length, getattr(training, "short_length", None) or max_length}))
    # Texts of evaluations can be longer than the training rows.
    get_static_shapes(model).widths = tuple(sorted({*widths, max_length}))
    # All pretraining batches have the same number of rows, so no rows are added.
    max_rows = device.padded_rows(arguments.per_device_train_batch_size)
    get_order = None if isinstance(batches, PretrainBatches) else training_rows(max_rows, texts)
    return static_collator(collate, get_order, widths, texts)


def captures_steps(
    model: PreTrainedModel, training: BaseTrainingConfig, arguments: TrainingArguments, batches: Batches
) -> bool:
    """Return whether the steps of a run are captured as CUDA graphs; if not, log when graphs would be faster.

    Raises:
        RecipeError: If the recipe requires graphs, but the steps differ or the run has several processes.
    """
    device = Device(arguments.device.type)
    if not device.has_graphs:
        if training.cuda_graphs:
            log.info(f"cuda_graphs has no effect: the {device.name} does not support graphs")
        return False
    stages = ("gradual_unfreezing", "head_only_epochs")
    reasons = {
        "the run has several processes": arguments.world_size > 1,
        "layers are unfrozen in stages": any(getattr(training, key, None) for key in stages),
        "the loss compares the texts of a batch": getattr(model, "compares_rows", False),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if training.cuda_graphs and reason:
        raise RecipeError(f"training.cuda_graphs: steps cannot be captured if {reason}", "leave it out")
    excluded = any(getattr(training, name) is True for name in NOT_CAPTURED)
    if not (training.cuda_graphs or reason or excluded) and batches.get_step_size()[1] < _MIN_TOKENS:
        log.info(
            "cuda_graphs is off; steps with few tokens can be several times faster with --set training.cuda_graphs=true"
        )
    return training.cuda_graphs


def tokens_to_train(batches: Batches, arguments: TrainingArguments, padding: int) -> set[int] | None:
    """Return the token ids whose word embeddings are trained, or None for all.

    The embedding of a token that does not occur has no gradient, so AdamW only applies weight decay to it; other
    optimizers can do more. On devices with fixed shapes, the lookup would need a copy to the CPU. Features are not
    padded, but batches are, so the padding token is included.
    """
    can_select = "adamw" in arguments.optim and Device(arguments.device.type).shapes_may_change
    tokens = batches.find_used_tokens() if can_select else None
    return {*tokens, padding} if tokens else None
