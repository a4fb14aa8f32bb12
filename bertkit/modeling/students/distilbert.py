"""Students of masked language models that start from layers of their teachers (Sanh et al. 2019, section 3)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.architectures import LAYER_NAMES, get_architecture, list_types, shares_layers
from bertkit.modeling.info import Config, Model, get_loading_info
from bertkit.modeling.layers import layers_to_take
from bertkit.modeling.load import load_for_pretraining
from bertkit.tokens.features import Batch, Tensor

# Submodules of BERT -> submodules of DistilBERT, in a layer and outside the layers.
_LAYER_SUBMODULES = dict(zip(LAYER_NAMES["encoder.layer"], LAYER_NAMES["transformer.layer"], strict=True))
_OTHER_SUBMODULES = {
    "bert.embeddings.word_embeddings": "distilbert.embeddings.word_embeddings",
    "bert.embeddings.position_embeddings": "distilbert.embeddings.position_embeddings",
    "bert.embeddings.LayerNorm": "distilbert.embeddings.LayerNorm",
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
    "cls.predictions.decoder": "vocab_projector",
}


@dataclass
class PretrainingTeacher:
    """Frozen model that a student learns from, in its attribute ``teacher``.

    This class is not a module, so the teacher is not trained, counted or saved with the student.
    """

    model: Model
    temperature: float = 1.0
    """Divisor of both models' logits before they are compared."""
    compare: Callable[[Tensor], Batch] | None = None
    """Function that sums the loss terms over the tokens of a mask, after both models have run on a batch."""
    hooks: ExitStack = field(default_factory=ExitStack)
    """Hooks and projections of the student; close them after training and evaluation."""


def load_teacher(folder: Path, config: Config) -> Model:
    """Load a frozen masked language model in evaluation mode.

    Raises:
        ModelError: If the model has no head over tokens, or does not load.
    """
    from transformers import AutoModelForMaskedLM

    teacher = load_for_pretraining(AutoModelForMaskedLM, folder, config)
    if new := get_loading_info(teacher).new_weights:
        message = f"the teacher has no head that predicts masked tokens (the checkpoint lacks {new[0]})"
        raise ModelError(message, f"train one first: bertkit pretrain mlm --model {folder}", file=folder)
    return teacher.requires_grad_(False).eval()


def choose_layers(choice: int | list[int] | None, config: Config) -> list[int]:
    """Return the indices of the teacher's layers that a student copies; None selects every second layer.

    Raises:
        ModelError: If a teacher of this type cannot have students.
        RecipeError: If the teacher lacks one of the layers, or the first selected layer cannot be the student's first.
    """
    architecture = get_architecture(config)
    if architecture.student_type is None:
        problem = f"a student cannot copy layers of a teacher of type {config.model_type!r}"
        reason = "they share their weights" if shares_layers(config) else "they are not known"
        raise ModelError(f"{problem}: {reason}", f"use one of type {', '.join(list_types('student_type'))}")
    count = config.num_hidden_layers
    layers = list(range(0, count, 2)) if choice is None else layers_to_take(choice, count)
    if architecture.first_layer_differs and layers[0] != 0:
        reason = f"the first layer of a {config.model_type} model differs from the others"
        raise RecipeError(f"student_layers start with {layers[0]}, but {reason}", "start with 0")
    return layers


def make_student(teacher: Model, layers: Sequence[int]) -> Model:
    """Copy some layers, the embeddings and the head of a teacher into a smaller model; BERT becomes DistilBERT.

    DistilBERT has no token types. With all layers of BERT, it makes the teacher's predictions if all tokens have the
    type 0. Students of other types differ from their teachers only in the number of layers.
    """
    architecture = get_architecture(teacher.config)
    keeps_type = architecture.student_type == architecture.model_type
    return (_make_shorter if keeps_type else _make_distilbert)(teacher, layers)


def _make_shorter(teacher: Model, layers: Sequence[int]) -> Model:
    from bertkit.modeling.attention import preserve_sliding_window

    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = len(layers)
    if types := getattr(config, "layer_types", None):
        config.layer_types = [types[layer] for layer in layers]
    student = type(teacher)(config)
    student.load_state_dict(_take_weights(teacher, layers))
    preserve_sliding_window(student)
    return student


def _make_distilbert(teacher: Model, layers: Sequence[int]) -> Model:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = teacher.config
    student = DistilBertForMaskedLM(
        DistilBertConfig(
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            n_layers=len(layers),
            n_heads=config.num_attention_heads,
            dim=config.hidden_size,
            hidden_dim=config.intermediate_size,
            dropout=config.hidden_dropout_prob,
            attention_dropout=config.attention_probs_dropout_prob,
            activation=config.hidden_act,
            initializer_range=config.initializer_range,
            pad_token_id=config.pad_token_id,
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    weights = {}
    for name, values in _take_weights(teacher, layers).items():
        module, _, parameter = name.rpartition(".")
        if match := re.fullmatch(r"bert\.encoder\.layer\.(\d+)\.(.+)", module):
            submodule = _LAYER_SUBMODULES[match[2]]
            weights[f"distilbert.transformer.layer.{match[1]}.{submodule}.{parameter}"] = values
        elif module in _OTHER_SUBMODULES:
            weights[f"{_OTHER_SUBMODULES[module]}.{parameter}"] = values
    # Add the embedding of token type 0, (width,), to all position embeddings, (positions, width): every token has one
    # position. Word embeddings must not change, because the head shares them.
    first_type = teacher.bert.embeddings.token_type_embeddings.weight[0]
    name = "distilbert.embeddings.position_embeddings.weight"
    weights[name] = weights[name] + first_type
    student.load_state_dict(weights)
    return student


def _take_weights(teacher: Model, layers: Sequence[int]) -> dict[str, Any]:
    """Select the weights of some layers, with new indices from 0, and all weights outside the layers."""
    path = f".{get_architecture(teacher.config).layers_path}."
    indices = {str(layer): str(index) for index, layer in enumerate(layers)}
    weights = {}
    # For example, bert.encoder.layer.11.output.dense.weight becomes bert.encoder.layer.5.output.dense.weight.
    for name, values in teacher.state_dict().items():
        prefix, separator, suffix = name.partition(path)
        layer, _, parameter = suffix.partition(".")
        if not separator:
            weights[name] = values
        elif layer in indices:
            weights[f"{prefix}{path}{indices[layer]}.{parameter}"] = values
    return weights
