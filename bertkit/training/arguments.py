"""Arguments of the Trainer, shapes of batches, CUDA graphs and XLA, as a recipe and a machine require."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import transformers
from accelerate import skip_first_batches
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainingArguments

from bertkit.errors import RecipeError, closest
from bertkit.hardware.device import Device, check_accelerate, lead_accelerate
from bertkit.hardware.precision import Machine
from bertkit.modeling.static_shapes import always_masked, get_static_shapes, texts_of_rows
from bertkit.progress import log
from bertkit.recipe import CommonTraining
from bertkit.recipe.training import NOT_CAPTURED
from bertkit.recipe.values import decided_arguments, other_names
from bertkit.tokens.feature_cache import longest_of
from bertkit.tokens.features import Collator
from bertkit.tokens.static_shapes import (
    ONE_TEXT,
    WIDTHS,
    WIDTHS_OF_GRAPHS,
    WIDTHS_OF_SHARES,
    choose_widths,
    static_collator,
    training_rows,
)
from bertkit.training.batching import Batches, InMemoryBatches, check_batch
from bertkit.training.pretrain_batches import PretrainBatches
from bertkit.training.trackers import tracking_arguments

_BUSY_TOKENS = 4096  # of a step; an H100 computes fewer in less time than launching their kernels takes


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


def fitting_collator(
    collate: Collator,
    batches: Batches,
    model: PreTrainedModel,
    training: CommonTraining,
    arguments: TrainingArguments,
    *,
    graphs: bool,
) -> Collator:
    """Return a collator of batches of few shapes where there is a graph for each; else as it is.

    The model then knows the widths, for its evaluations.
    """
    device = Device(arguments.device.type)
    if device.shapes_may_change and not (training.torch_compile or graphs):
        return collate
    most, texts = training.max_length, ONE_TEXT
    if isinstance(batches, InMemoryBatches):
        texts = texts_of_rows(model, batches.features)
        adds_up = training.gradient_accumulation > 1 or batches.items is not None
        adds_up = adds_up or (texts.are_windows and texts.most > 1)
        few = WIDTHS_OF_GRAPHS if graphs else WIDTHS_OF_SHARES if adds_up else WIDTHS
        widths = choose_widths(longest_of(batches.features), few)
    else:
        widths = tuple(sorted({most, getattr(training, "short_length", None) or most}))
    # texts of evaluations may be longer
    get_static_shapes(model).widths = tuple(sorted({*widths, most}))
    # those of pretraining have equally many rows anyway
    share = device.whole_rows(arguments.per_device_train_batch_size)
    order = None if isinstance(batches, PretrainBatches) else training_rows(share, texts)
    return static_collator(collate, order, widths, texts)


def captures_steps(
    model: PreTrainedModel, training: CommonTraining, arguments: TrainingArguments, batches: Batches
) -> bool:
    """Tell whether the steps of a run are captured as CUDA graphs; log where they could be, and hardly keep a GPU busy.

    Raises:
        RecipeError: they cannot be, since they differ from step to step, or in several processes.
    """
    device = Device(arguments.device.type)
    if not device.has_graphs:
        if training.cuda_graphs:
            log.info(f"cuda_graphs: the {device.name} launches no graphs; steps are as without it")
        return False
    stages = ("gradual_unfreezing", "head_only_epochs")
    reasons = {
        "in several processes": arguments.world_size > 1,
        "of layers that are trained one after the other": any(getattr(training, key, None) for key in stages),
        "whose loss compares the texts of a batch": getattr(model, "compares_rows", False),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if training.cuda_graphs and reason:
        raise RecipeError(f"training.cuda_graphs: the steps of a run {reason} cannot be captured", "leave it out")
    excluded = any(getattr(training, name) is True for name in NOT_CAPTURED)
    if not (training.cuda_graphs or reason or excluded) and batches.step_size()[1] < _BUSY_TOKENS:
        log.info(
            "cuda_graphs: off; with so few tokens a step, --set training.cuda_graphs=true may be several times as fast"
        )
    return training.cuda_graphs


def tokens_to_train(batches: Batches, arguments: TrainingArguments, padding: int) -> set[int] | None:
    """Return the ids whose word embeddings are trained; None for all, as where looking them up takes a trip to the CPU.

    An embedding that does not occur has no gradient, and AdamW changes it by weight decay alone; other optimizers may
    do more. Features have no padding, but batches look it up.
    """
    looks_up = "adamw" in arguments.optim and Device(arguments.device.type).shapes_may_change
    tokens = batches.occurring_tokens() if looks_up else None
    return {*tokens, padding} if tokens else None


def ways_of_training(device: Device, *, graphs: bool) -> AbstractContextManager[None]:
    """Open what training on a device differs in: masks of every batch where graphs compute it, and XLA's ways."""
    if not device.shapes_may_change:
        return on_xla()
    return always_masked() if graphs else nullcontext()


@contextmanager
def on_xla() -> Iterator[None]:
    """Let a Trainer on XLA skip batches of its loader, and read its loss, as it does on other devices.

    Accelerate expects a loader of its own there, which moves batches to the device in a thread. To let all processes
    meet, graphs would be compiled. Attention is masked in each batch.
    """
    from accelerate.state import DistributedType, PartialState

    def skip(loader: DataLoader[Any], count: int) -> Any:
        state = PartialState()._shared_state
        with_xla, state["distributed_type"] = state["distributed_type"], DistributedType.NO
        try:
            return skip_first_batches(loader, count)
        finally:
            state["distributed_type"] = with_xla

    trainer = transformers.trainer
    with always_masked(), ExitStack() as patches:
        for place, name, alone in (
            (trainer, "skip_first_batches", skip),
            (trainer, "nested_gather", lambda loss, *_: loss.cpu()),
            (trainer.xm, "rendezvous", lambda *_: None),
        ):
            patches.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, alone)
        yield
