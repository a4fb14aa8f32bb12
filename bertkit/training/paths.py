"""The speed paths that a recipe and a machine allow a model in training, and whether they leave out padding."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from bertkit.hardware.precision import Machine
from bertkit.modeling.attention import speed_paths
from bertkit.modeling.dropout import DropoutStream
from bertkit.modeling.embeddings import OccurringEmbeddings
from bertkit.modeling.info import info_of, tagger_head
from bertkit.recipe import CommonTraining

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def on_speed_paths(
    model: PreTrainedModel,
    training: CommonTraining,
    machine: Machine,
    dropout: DropoutStream,
    tokens: Iterable[int] | None,
) -> AbstractContextManager[OccurringEmbeddings | None]:
    """Return `speed_paths` for a model as the recipe and the machine allow."""
    # With gradient checkpointing, layers run again in the backward pass. The dropout stream would then draw other
    # numbers, and the layout without padding would be gone. Compiled layers can call neither.
    runs_once = machine.device == "cpu" and not (training.gradient_checkpointing or training.torch_compile)
    return speed_paths(
        model,
        dropout if training.fast_dropout and runs_once else None,
        unpad=training.unpad is not False and runs_once,
        tokens=tokens,
        compiled=training.torch_compile,
    )


def why_padding_is_computed(model: PreTrainedModel, training: CommonTraining, machine: Machine) -> str | None:
    """Say why a model on its speed paths computes the padding of batches; None where it does not."""
    has_run = tagger_head(model.config) is not None  # a frozen encoder, whose states are read before
    if has_run or info_of(model).speed_paths.unpadded_layers:
        return None
    if machine.device != "cpu":
        return "a GPU computes padding"
    settings = {
        "gradient_checkpointing: true": training.gradient_checkpointing,
        "torch_compile: true": training.torch_compile,
        "unpad: false": not training.unpad,
    }
    for setting in (name for name, is_set in settings.items() if is_set):
        return f"padding is computed with {setting}"
    return f"padding is computed in this {model.config.model_type} model"
