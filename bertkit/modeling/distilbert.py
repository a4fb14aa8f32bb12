"""Students of masked language models, made of their teacher's layers (Sanh et al. 2019, section 3)."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError
from bertkit.modeling.layers import layers_to_take
from bertkit.modeling.load import load_to_pretrain

_KEEPS_ITS_TYPE = ("roberta", "xlm-roberta", "camembert")  # they use no token types, so fewer layers are all it takes

# Parts of BERT -> of DistilBERT.
_LAYER = {
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}
_AROUND = {
    "bert.embeddings.word_embeddings": "distilbert.embeddings.word_embeddings",
    "bert.embeddings.position_embeddings": "distilbert.embeddings.position_embeddings",
    "bert.embeddings.LayerNorm": "distilbert.embeddings.LayerNorm",
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
    "cls.predictions.decoder": "vocab_projector",
}


@dataclass
class Teaching:
    """What a student carries along while it is trained.

    It is an attribute of the student, `bertkit_teaching`, that is no module: nothing trains the teacher, counts it or
    saves it, and a model that is spread over processes does not know of it.
    """

    teacher: Any
    temperature: float


def load_teacher(folder: Path, config: Any) -> Any:
    """Load a masked language model that answers and is never trained.

    Raises:
        ModelError: it has no head over tokens, or does not load.
    """
    from transformers import AutoModelForMaskedLM

    teacher = load_to_pretrain(AutoModelForMaskedLM, folder, config)
    if teacher.bertkit_new:
        what = f"the teacher has no head that answers with tokens ({teacher.bertkit_new[0]} is lacking)"
        raise ModelError(what, f"give it one first: bertkit pretrain mlm --model {folder}", file=folder)
    return teacher.requires_grad_(False).eval()


def choose_layers(wanted: int | list[int] | None, config: Any) -> list[int]:
    """Give the teacher's layers that a student is made of; every second one when nothing is wanted.

    Raises:
        ModelError: a teacher of which no student can be made.
        RecipeError: layers that it does not have.
    """
    if config.model_type not in ("bert", *_KEEPS_ITS_TYPE):
        what = f"no student can be made of a teacher of type {config.model_type!r}"
        raise ModelError(what, "take one of type bert or roberta")
    count = config.num_hidden_layers
    return list(range(0, count, 2)) if wanted is None else layers_to_take(wanted, count)


def make_student(teacher: Any, layers: Sequence[int]) -> Any:
    """Copy some layers of a teacher, its embeddings and its head into a smaller model: DistilBERT where it is BERT.

    With all layers, the student of a BERT answers as its teacher does to a text that is all of token type 0.
    """
    make = _make_distilbert if teacher.config.model_type == "bert" else _make_shorter
    student = make(teacher, layers)
    student.bertkit_new = []
    return student


def _make_shorter(teacher: Any, layers: Sequence[int]) -> Any:
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = len(layers)
    student = type(teacher)(config)
    student.load_state_dict(_take(teacher.state_dict(), layers))
    return student


def _make_distilbert(teacher: Any, layers: Sequence[int]) -> Any:
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
    for name, values in _take(teacher.state_dict(), layers).items():
        part, _, kind = name.rpartition(".")
        if inner := re.fullmatch(r"bert\.encoder\.layer\.(\d+)\.(.+)", part):
            weights[f"distilbert.transformer.layer.{inner[1]}.{_LAYER[inner[2]]}.{kind}"] = values
        elif part in _AROUND:
            weights[f"{_AROUND[part]}.{kind}"] = values
    # DistilBERT has no token types: that of a text by itself goes into the positions, since words are tied to the head
    first_type = teacher.bert.embeddings.token_type_embeddings.weight[0]
    positions = "distilbert.embeddings.position_embeddings.weight"
    weights[positions] = weights[positions] + first_type
    student.load_state_dict(weights)
    return student


def _take(weights: dict[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    """Leave out the other layers, and number those that stay from 0 on."""
    numbers = {str(layer): str(number) for number, layer in enumerate(layers)}
    taken = {}
    for name, values in weights.items():
        before, middle, after = name.partition(".encoder.layer.")
        number, _, rest = after.partition(".")
        if not middle:
            taken[name] = values
        elif number in numbers:
            taken[f"{before}{middle}{numbers[number]}.{rest}"] = values
    return taken
