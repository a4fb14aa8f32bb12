"""The speed paths that a recipe and a machine allow a model in training, and whether they leave out padding."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from transformers import PreTrainedModel, TrainingArguments

from bertkit.hardware.device import Device
from bertkit.hardware.precision import Machine
from bertkit.modeling.attention import speed_paths
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.embeddings import OccurringEmbeddings
from bertkit.modeling.heads.filled import texts_of_rows
from bertkit.modeling.info import info_of, tagger_head
from bertkit.modeling.unpadding.layout import why_no_varlen
from bertkit.recipe import CommonTraining
from bertkit.tokens.feature_cache import longest_of
from bertkit.tokens.features import Collator
from bertkit.tokens.static_shapes import (
    ONE_TEXT,
    WIDTHS,
    WIDTHS_OF_SHARES,
    choose_widths,
    static_collator,
    training_rows,
)
from bertkit.training.batching import Batches, InMemoryBatches
from bertkit.training.pretrain_batches import PretrainBatches
from bertkit.training.streaming import StreamedBatches
from bertkit.training.task_batches import TaskBatches


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
        unpad=_why_padded(model, training, machine) is None,
        tokens=tokens,
        merge=runs_once_on_cpu,
        compiled=training.torch_compile,
    )


def fitting_collator(
    collate: Collator, batches: Batches, model: PreTrainedModel, training: CommonTraining, arguments: TrainingArguments
) -> Collator:
    """Return a collator of batches of few shapes where a device or torch.compile compiles for each; else as it is.

    The model then knows the widths, for its evaluations.
    """
    device = Device(arguments.device.type)
    if device.shapes_may_change and not training.torch_compile:
        return collate
    most, texts = training.max_length, ONE_TEXT
    if isinstance(batches, (InMemoryBatches, TaskBatches)):
        tasks = [batches] if isinstance(batches, InMemoryBatches) else list(batches.tasks.values())
        texts = texts_of_rows(model, batches.features) if len(tasks) == 1 else ONE_TEXT
        adds_up = training.gradient_accumulation > 1 or any(task.items is not None for task in tasks)
        adds_up = adds_up or (texts.are_windows and texts.most > 1)
        few = (WIDTHS_OF_SHARES if adds_up else WIDTHS) // len(tasks)
        widths = choose_widths(longest_of(batches.features), max(few, 1))
    elif isinstance(batches, StreamedBatches):
        widths = (most // 4, most)
    else:
        widths = tuple(sorted({most, getattr(training, "short_length", None) or most}))
    # texts of evaluations may be longer
    info_of(model).static_widths = tuple(sorted({*widths, most}))
    # those of pretraining have equally many rows anyway
    share = device.whole_rows(arguments.per_device_train_batch_size)
    order = None if isinstance(batches, PretrainBatches) else training_rows(share, texts)
    return static_collator(collate, order, widths, texts)


def tokens_to_train(batches: Batches, arguments: TrainingArguments, padding: int) -> set[int] | None:
    """Return the ids whose word embeddings are trained; None for all, as where looking them up takes a trip to the CPU.

    An embedding that does not occur has no gradient, and AdamW changes it by weight decay alone; other optimizers may
    do more. Features have no padding, but batches look it up.
    """
    looks_up = "adamw" in arguments.optim and Device(arguments.device.type).shapes_may_change
    tokens = batches.occurring_tokens() if looks_up else None
    return {*tokens, padding} if tokens else None


def why_padding_is_computed(model: PreTrainedModel, training: CommonTraining, machine: Machine) -> str | None:
    """Say why a model on its speed paths computes the padding of batches; None where it does not."""
    # a frozen encoder, whose states are read before
    has_run = tagger_head(model.config) is not None
    if has_run or info_of(model).speed_paths.unpadded_layers:
        return None
    return _why_padded(model, training, machine) or f"padding is computed in this {model.config.model_type} model"


def _why_padded(model: PreTrainedModel, training: CommonTraining, machine: Machine) -> str | None:
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
