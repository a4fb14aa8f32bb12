"""Fine-tuned models in plain torch: the encoder that only computes, with a head.

Outputs are equal to the outputs of transformers, in fp32 to the last bit, so scores do not change. After
`InferenceModel.pack_texts`, the model leaves out padding, and outputs differ by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from bertkit.modeling.architectures import find_architecture, get_architecture
from bertkit.modeling.checkpoint import check_config, load_config, read_json_object
from bertkit.modeling.inference.encoder import (
    FusedLinear,
    InferenceEncoder,
    Weights,
    add_bias_shapes,
    are_complete,
    get_encoder_shapes,
    has_known_encoder,
    read_weights,
)
from bertkit.modeling.info import Config, Model, get_tagger_head
from bertkit.tokens.features import Tensors

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")  # the first of `Architecture.config_fields`


def load_for_inference(
    auto_class: str, folder: Path, labels: Sequence[str], *, problem_type: str | None = None, cls_only: bool = False
) -> Model | None:
    """Load a fine-tuned checkpoint without transformers' modeling code.

    The model replaces the one of transformers, in float32, as far as a forward pass needs it. The arguments mean what
    they mean in `bertkit.modeling.load.load_pretrained`; with `cls_only`, the last layer computes the first token only.

    Returns:
        None if the checkpoint needs transformers, or is damaged: transformers then reports the error.

    Raises:
        ModelError: If `bertkit.modeling.checkpoint.load_config` does.
    """
    config = read_known_config(folder) or load_config(folder)
    if not _is_known(config, auto_class) or config.problem_type not in (None, problem_type):
        return None
    head, width, weights = _HeadNames.from_config(config, auto_class), config.hidden_size, read_weights(folder)
    outputs = 1 if auto_class == "AutoModelForMultipleChoice" else len(labels)
    shapes = {f"{get_architecture(config).prefix}.{name}": size for name, size in get_encoder_shapes(config).items()}
    hidden_shape = {head.summary: (width, width)} if head.summary else {}
    shapes |= add_bias_shapes({head.outputs: (outputs, width), **hidden_shape})
    if not are_complete(weights, shapes):
        return None
    return cast("Model", InferenceModel(config, head, weights, cls_only=cls_only))


def read_known_config(folder: Path) -> Config | None:
    """Read the config of a known encoder without transformers, or return None if transformers has to read it.

    transformers fills in fields that a config lacks, so all fields that a forward pass depends on must be present.

    Raises:
        ModelError: If `bertkit.modeling.checkpoint.check_config` does.
    """
    file = folder / "config.json"
    content = read_json_object(file)
    check_config(content, file)
    fields = find_architecture(content["model_type"]).config_fields or ()
    right = all(type(content.get(name)) is (float if name == "layer_norm_eps" else int) for name in fields)
    if not fields or not right or "auto_map" in content or content.get("is_encoder_decoder"):
        return None
    # DistilBERT has other names for these sizes.
    sizes = {name: content[type_name] for name, type_name in zip(_SIZES, fields, strict=False)}
    return cast("Config", SimpleNamespace(**{"problem_type": None, "architectures": None, **content, **sizes}))


def _is_known(config: Config, auto_class: str) -> bool:
    """Return whether a checkpoint has a known class, and all settings that change its outputs are usual."""
    return (
        has_known_encoder(config)
        and config.architectures
        in ([f"{get_architecture(config).classes}{auto_class.removeprefix('AutoModel')}"], None)
        and (auto_class != "AutoModelForMultipleChoice" or get_architecture(config).chooser is not None)
        and get_tagger_head(config) is None
    )


@dataclass(frozen=True)
class _HeadNames:
    """Names of the layers of a head in a checkpoint, and the activation between them."""

    outputs: str
    summary: str | None = None
    """The layer over the first token, or None if the head reads each token."""
    activation: str = ""

    @classmethod
    def from_config(cls, config: Config, auto_class: str) -> _HeadNames:
        architecture = get_architecture(config)
        if auto_class == "AutoModelForQuestionAnswering":
            return cls("qa_outputs")
        if auto_class == "AutoModelForTokenClassification":
            return cls("classifier")
        head = architecture.chooser if auto_class == "AutoModelForMultipleChoice" else architecture.classifier
        assert head is not None  # checked by `_is_known`
        in_encoder = head.layer.startswith("pooler")
        return cls(head.outputs, f"{architecture.prefix}.{head.layer}" if in_encoder else head.layer, head.activation)


class InferenceModel(nn.Module):
    """An encoder of the BERT family with a head, for its outputs only: it has neither loss nor dropout."""

    def __init__(self, config: Config, head: _HeadNames, weights: Weights, *, cls_only: bool) -> None:
        super().__init__()
        self.config, self.head = config, head
        prefix = f"{get_architecture(config).prefix}."
        encoder_weights = {name.removeprefix(prefix): values for name, values in weights.items()}
        self.encoder = InferenceEncoder(config, encoder_weights, torch.float32)
        self.encoder.packs = False
        self.summary = FusedLinear(weights, torch.float32, head.summary) if head.summary else None
        self.first_only = cls_only and self.summary is not None and get_architecture(config).is_bert_like
        self.outputs = FusedLinear(weights, torch.float32, head.outputs)
        self.eval()

    def pack_texts(self) -> None:
        """Leave out padding on a CPU, which changes outputs by rounding."""
        self.encoder.packs, self.first_only = True, self.summary is not None

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **named: torch.Tensor) -> Tensors:
        """Compute the outputs of texts, shape (rows, tokens), or choices, shape (rows, choices, tokens)."""
        rows = input_ids.shape[:-1]
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **named}
        inputs = {name: values.flatten(0, -2) for name, values in inputs.items() if name in _INPUTS}
        hidden = self.encoder(**inputs, first_only=self.first_only)["last_hidden_state"]
        # In fp32 under autocast too, as `bertkit.modeling.load.compute_head_in_fp32` explains.
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
