"""Fine-tuned models that answer: the encoder that only computes, with a head.

Its outputs are those of transformers, in fp32 to the last bit, so scores are those of the run, unless
`InferenceModel.pack_texts` lets it leave padding out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from bertkit.modeling.architectures import architecture_of
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.inference.encoder import FusedLinear, InferenceEncoder, Weights
from bertkit.modeling.inference.known import (
    are_whole,
    encoder_shapes,
    has_known_encoder,
    read_known_config,
    read_weights,
    with_biases,
)
from bertkit.modeling.info import Config, Model, tagger_head
from bertkit.tokens.features import Tensors

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def load_for_inference(
    auto_class: str, folder: Path, labels: Sequence[str], *, problem_type: str | None = None, cls_only: bool = False
) -> Model | None:
    """Load a fine-tuned checkpoint without transformers' modeling code; None where that is needed, or knows the error.

    The model stands in for one of transformers', in float32, as far as a forward pass needs it. The arguments are those
    of `bertkit.modeling.load.load_pretrained`; `cls_only` lets the last layer compute the first token only, if the head
    reads no other.

    Raises:
        ModelError: If `bertkit.modeling.checkpoint.load_config` raises it.
    """
    config = read_known_config(folder) or load_config(folder)
    if not _is_known(config, auto_class) or config.problem_type not in (None, problem_type):
        return None
    head, width, weights = _HeadNames.of(config, auto_class), config.hidden_size, read_weights(folder)
    outputs = 1 if auto_class == "AutoModelForMultipleChoice" else len(labels)
    shapes = {f"{architecture_of(config).prefix}.{name}": size for name, size in encoder_shapes(config).items()}
    shapes |= with_biases({head.outputs: (outputs, width), **({head.summary: (width, width)} if head.summary else {})})
    return (
        cast("Model", InferenceModel(config, head, weights, cls_only=cls_only)) if are_whole(weights, shapes) else None
    )


def _is_known(config: Config, auto_class: str) -> bool:
    """Tell whether a checkpoint is of a known class, and no setting changes how it computes or what it returns."""
    return (
        has_known_encoder(config)
        and config.architectures in ([f"{architecture_of(config).classes}{auto_class.removeprefix('AutoModel')}"], None)
        and (auto_class != "AutoModelForMultipleChoice" or architecture_of(config).chooser is not None)
        and tagger_head(config) is None
    )


@dataclass(frozen=True)
class _HeadNames:
    """Where a checkpoint has the layers of a head, and what stands between them."""

    outputs: str
    summary: str | None = None
    """The layer over the first token; None where the head reads each token."""
    activation: str = ""

    @classmethod
    def of(cls, config: Config, auto_class: str) -> _HeadNames:
        architecture = architecture_of(config)
        if auto_class == "AutoModelForQuestionAnswering":
            return cls("qa_outputs")
        if auto_class == "AutoModelForTokenClassification":
            return cls("classifier")
        head = architecture.chooser if auto_class == "AutoModelForMultipleChoice" else architecture.classifier
        assert head is not None  # `_is_known` has looked
        in_encoder = head.layer.startswith("pooler")
        return cls(head.outputs, f"{architecture.prefix}.{head.layer}" if in_encoder else head.layer, head.activation)


class InferenceModel(nn.Module):
    """An encoder of BERT's kin with a head, for its outputs only: it computes no loss, and nothing at random."""

    def __init__(self, config: Config, head: _HeadNames, weights: Weights, *, cls_only: bool) -> None:
        super().__init__()
        self.config, self.head = config, head
        prefix = f"{architecture_of(config).prefix}."
        of_encoder = {name.removeprefix(prefix): values for name, values in weights.items()}
        self.encoder = InferenceEncoder(config, of_encoder, torch.float32)
        self.encoder.packs = False
        self.summary = FusedLinear(weights, torch.float32, head.summary) if head.summary else None
        self.first_only = cls_only and self.summary is not None and architecture_of(config).is_bert_like
        self.outputs = FusedLinear(weights, torch.float32, head.outputs)
        self.eval()

    def pack_texts(self) -> None:
        """Leave padding out on a CPU, which changes outputs by rounding."""
        self.encoder.packs, self.first_only = True, self.summary is not None

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **others: torch.Tensor) -> Tensors:
        """Compute the outputs of texts, shape (rows, tokens), or choices, shape (rows, choices, tokens)."""
        rows = input_ids.shape[:-1]
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **others}
        inputs = {name: values.flatten(0, -2) for name, values in inputs.items() if name in _INPUTS}
        hidden = self.encoder(**inputs, first_only=self.first_only)["last_hidden_state"]
        # in fp32, as `bertkit.modeling.load.compute_head_in_fp32` lets a head be computed
        with torch.autocast(hidden.device.type, enabled=False):
            if self.summary is not None:
                name = self.head.activation
                activation = getattr(functional if name == "gelu" else torch, name)
                logits = self.outputs(activation(self.summary(hidden[:, 0])))
                return {"logits": logits.view(rows) if len(rows) > 1 else logits}
            logits = self.outputs(hidden)
        if self.head.outputs == "classifier":
            return {"logits": logits}
        start, end = logits.unbind(dim=-1)
        return {"start_logits": start.contiguous(), "end_logits": end.contiguous()}
