"""What a recipe and a machine decide of a training: TrainingArguments, speed paths, shapes of batches, XLA's ways."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
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
from bertkit.modeling.attention import speed_paths
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.embeddings import OccurringEmbeddings
from bertkit.modeling.heads.filled import always_masked, texts_of_rows
from bertkit.modeling.info import info_of, tagger_head
from bertkit.modeling.unpadding.attend import why_no_varlen
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


def on_speed_paths(
    model: PreTrainedModel,
    training: CommonTraining,
    machine: Machine,
    dropout: DropoutStream,
    tokens: Iterable[int] | None,
) -> AbstractContextManager[OccurringEmbeddings | None]:
    """Return `speed_paths` for a model as the recipe and the machine allow."""
    runs_once_on_cpu = machine.device == "cpu" and not _reruns(training)
    return speed_paths(
        model,
        dropout if training.fast_dropout and runs_once_on_cpu else None,
        unpad=_reason_to_pad(model, training, machine) is None,
        tokens=tokens,
        merge=runs_once_on_cpu,
        compiled=training.torch_compile,
        host_masks=not training.cuda_graphs,
    )


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
    info_of(model).static_widths = tuple(sorted({*widths, most}))
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
        "whose loss compares the texts of a batch": info_of(model).compares_rows,
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


def why_padded(model: PreTrainedModel, training: CommonTraining, machine: Machine) -> str | None:
    """Say why a model on its speed paths computes the padding of batches; None where it does not."""
    # a frozen encoder, whose states are read before
    has_run = tagger_head(model.config) is not None
    if has_run or info_of(model).speed_paths.unpadded_layers:
        return None
    return _reason_to_pad(model, training, machine) or f"padding is computed in this {model.config.model_type} model"


def _reason_to_pad(model: PreTrainedModel, training: CommonTraining, machine: Machine) -> str | None:
    """Say what in the recipe or the machine keeps padding in the layers of any model; None where nothing does."""
    setting = _reruns(training) or (None if training.unpad else "unpad: false")
    if setting:
        return f"padding is computed with {setting}"
    if machine.device == "cpu":
        return None
    return "a GPU computes padding" if training.unpad == "auto" else why_no_varlen(model, machine)


def _reruns(training: CommonTraining) -> str | None:
    """Name the setting with which layers may neither draw from the dropout stream nor leave out padding.

    With gradient checkpointing, layers run again in the backward pass. The dropout stream would then draw other
    numbers, and the layout without padding would be gone. Compiled layers can call neither.
    """
    names = ("gradient_checkpointing", "torch_compile", "fsdp")
    return next((f"{name}: true" for name in names if getattr(training, name)), None)


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
