"""Fine-tuned models that answer: the operations of transformers in the same order, so outputs are equal to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from transformers.models.auto import modeling_auto
from transformers.utils import ModelOutput

from bertkit.modeling.architectures import LayerNames, TextHead, architecture_of, first_position
from bertkit.modeling.cls_only import split_heads
from bertkit.modeling.inference.known import (
    are_whole,
    encoder_shapes,
    has_known_encoder,
    layer_names,
    read_weights,
    with_biases,
)
from bertkit.modeling.info import Config, Model, tagger_head
from bertkit.modeling.load import load_model, quiet_transformers, read_config
from bertkit.modeling.weights import load_config
from bertkit.tokens.features import Setup

_CLASS_NAMES: dict[str, Mapping[str, str]] = {
    "AutoModelForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForMultipleChoice": modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES,
    "AutoModelForTokenClassification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "AutoModelForQuestionAnswering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}


@dataclass
class Answers(ModelOutput):  # type: ignore[misc]
    """Outputs of a head; those that it lacks, and the loss, are None."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    start_logits: torch.Tensor | None = None
    end_logits: torch.Tensor | None = None


def load_for_inference(
    auto_class: str, folder: Path, labels: Sequence[str], *, problem_type: str | None = None, cls_only: bool = False
) -> Model | None:
    """Load a fine-tuned checkpoint without transformers' modeling code; None where that is needed, or knows the error.

    The model stands in for one of transformers', in float32, as far as a forward pass needs it. The arguments are those
    of `bertkit.modeling.load.load_model`.

    Raises:
        ModelError: as `bertkit.modeling.weights.load_config` does.
    """
    quiet_transformers()
    config = load_config(folder)
    if not _is_known(config, auto_class) or config.problem_type not in (None, problem_type):
        return None
    model = InferenceModel(config, auto_class, len(labels), cls_only=cls_only)
    return cast("Model", model) if model.fill(folder) else None


def load_tagger(folder: Path, setup: Setup, head: dict[str, Any] | None, *, new_head: bool) -> Model:
    """Load a model with one output per label for every token, for inference where the setup says so.

    Args:
        folder: the checkpoint.
        setup: its labels are in the order of the outputs.
        head: layers, tagger and size over a frozen encoder; None for an encoder that is trained, with a linear layer.
        new_head: whether the head may be untrained; if not, it is the checkpoint's, whatever `head` says.

    Raises:
        ModelError: as `load_model` does.
    """
    if not new_head:
        head = tagger_head(read_config(folder))
    if head is not None:
        from bertkit.modeling.heads.taggers import tagger_class

        return load_model(tagger_class, folder, setup.labels, new_head=new_head, head=head)
    auto_class = "AutoModelForTokenClassification"
    if setup.inference and (model := load_for_inference(auto_class, folder, setup.labels)):
        return model
    return load_model(auto_class, folder, setup.labels, new_head=new_head)


def _is_known(config: Config, auto_class: str) -> bool:
    """Tell whether a checkpoint is of a known class, and no setting changes how it computes or what it returns."""
    return (
        has_known_encoder(config)
        and config.architectures in ([_CLASS_NAMES[auto_class].get(config.model_type)], None)
        and (auto_class != "AutoModelForMultipleChoice" or architecture_of(config).chooser is not None)
        and tagger_head(config) is None
    )


class InferenceModel(nn.Module):
    """An encoder of BERT's kin with a head, for its outputs only: it computes no loss, and nothing at random."""

    def __init__(self, config: Config, auto_class: str, outputs: int, *, cls_only: bool) -> None:
        super().__init__()
        architecture = architecture_of(config)
        heads = {
            "AutoModelForSequenceClassification": architecture.classifier,
            "AutoModelForMultipleChoice": architecture.chooser,
        }
        self.config = config
        self.outputs = 1 if auto_class == "AutoModelForMultipleChoice" else outputs
        self.head: TextHead | None = heads.get(auto_class)
        self.per_token = "qa_outputs" if auto_class == "AutoModelForQuestionAnswering" else "classifier"
        self.cls_only = cls_only and architecture.is_bert_like
        self.prefix = f"{architecture.prefix}."
        self.reads_token_types = architecture.reads_token_types
        self.first_position = first_position(config)
        self.layers = [
            LayerNames(*(f"{self.prefix}{name}" for name in layer_names(config, layer)))
            for layer in range(config.num_hidden_layers)
        ]
        self._cast: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight, by the name that it has in a checkpoint."""
        width = self.config.hidden_size
        head: dict[str, tuple[int, ...]] = {self._last(): (self.outputs, width)}
        if self.head is not None:
            head[self._summary()] = (width, width)
        encoder = {f"{self.prefix}{name}": size for name, size in encoder_shapes(self.config).items()}
        return encoder | with_biases(head)

    def fill(self, folder: Path) -> bool:
        """Read the weights; return False where they are not exactly those of this model, all of them finite."""
        weights = read_weights(folder)
        if not are_whole(weights, self.shapes()):
            return False
        for name, weight in weights.items():
            # a copy, since the file is mapped, and may be overwritten later
            self.register_parameter(name.replace(".", "/"), nn.Parameter(weight.to(torch.float32, copy=True)))
        return True

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **others: torch.Tensor) -> Answers:
        """Compute the outputs of texts, shape (rows, tokens), or choices, shape (rows, choices, tokens)."""
        rows = input_ids.shape[:-1]
        ids, mask = input_ids.flatten(0, -2), attention_mask.flatten(0, -2)
        types = others["token_type_ids"].flatten(0, -2) if "token_type_ids" in others else torch.zeros_like(ids)
        hidden = self._embed(ids, types)
        # of each text (1, tokens to compute, tokens to attend to), where anything is padding
        allowed = None if mask.all() else mask.bool()[:, None, None].expand(-1, 1, ids.shape[1], -1)
        for names in self.layers:
            first_only = self.cls_only and names is self.layers[-1]
            hidden = self._layer(names, hidden, allowed, first_only=first_only)
        if self.head is not None:
            activation = getattr(functional if self.head.activation == "gelu" else torch, self.head.activation)
            logits = self._in_fp32(self._last(), activation(self._in_fp32(self._summary(), hidden[:, 0])))
            return Answers(logits=logits.view(rows) if len(rows) > 1 else logits)
        logits = self._in_fp32(self._last(), hidden)
        if self.per_token == "classifier":
            return Answers(logits=logits)
        start, end = logits.unbind(dim=-1)
        return Answers(start_logits=start.contiguous(), end_logits=end.contiguous())

    def _embed(self, ids: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        if self.first_position:  # padding has the position before the first
            real = ids.ne(self.first_position - 1).int()
            positions = (real.cumsum(dim=1).type_as(real) * real).long() + self.first_position - 1
        else:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        hidden = functional.embedding(ids, self._weight(f"{self.prefix}embeddings.word_embeddings.weight"))
        if self.reads_token_types:
            table = self._weight(f"{self.prefix}embeddings.token_type_embeddings.weight")
            hidden = hidden + functional.embedding(types, table)
        table = self._weight(f"{self.prefix}embeddings.position_embeddings.weight")
        hidden = self._norm(f"{self.prefix}embeddings.LayerNorm", hidden + functional.embedding(positions, table))
        if hidden.shape[-1] == self.config.hidden_size:
            return hidden
        return self._linear(f"{self.prefix}embeddings_project", hidden)

    def _layer(
        self, names: LayerNames, hidden: torch.Tensor, allowed: torch.Tensor | None, *, first_only: bool
    ) -> torch.Tensor:
        """Compute a layer, or of its outputs the first token's: (texts, tokens or 1, width)."""
        size = self.config.hidden_size // self.config.num_attention_heads

        queries = hidden[:, :1] if first_only else hidden
        summed = functional.scaled_dot_product_attention(
            split_heads(self._linear(names.query, queries), size),
            split_heads(self._linear(names.key, hidden), size),
            split_heads(self._linear(names.value, hidden), size),
            attn_mask=allowed[:, :, :1] if first_only and allowed is not None else allowed,
            scale=size**-0.5,
        )
        summed = summed.transpose(1, 2).contiguous().reshape(*queries.shape[:-1], -1)
        attended = self._norm(names.attended_norm, self._linear(names.attended, summed) + queries)
        wide = functional.gelu(self._linear(names.wide, attended))
        return self._norm(names.norm, self._linear(names.narrow, wide) + attended)

    def _summary(self) -> str:
        assert self.head is not None
        return f"{self.prefix if self.head.layer.startswith('pooler') else ''}{self.head.layer}"

    def _last(self) -> str:
        return self.head.outputs if self.head is not None else self.per_token

    def _weight(self, name: str) -> torch.Tensor:
        # not by `get_parameter`, whose checks take a tenth of the time of a short text
        weight = self._parameters[name.replace(".", "/")]
        assert weight is not None
        return weight

    def _linear(self, name: str, values: torch.Tensor) -> torch.Tensor:
        weight, bias = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        if torch.is_autocast_enabled(values.device.type):
            # autocast would cast the weights anew in each forward pass, which takes longer than a short text
            if name not in self._cast:
                dtype = torch.get_autocast_dtype(values.device.type)
                self._cast[name] = (weight.to(dtype), bias.to(dtype))
            weight, bias = self._cast[name]
        return functional.linear(values, weight, bias)

    def _in_fp32(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Compute a layer of a head as `bertkit.modeling.heads.outputs.compute_head_in_fp32` lets it be computed."""
        with torch.autocast(values.device.type, enabled=False):
            return self._linear(name, values.float())

    def _norm(self, name: str, values: torch.Tensor) -> torch.Tensor:
        epsilon = getattr(self.config, "layer_norm_eps", 1e-12)
        weight, bias = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        return functional.layer_norm(values, values.shape[-1:], weight, bias, epsilon)
