"""Fine-tuned models in plain torch: `InferenceEncoder` with a head.

Outputs are equal to transformers' outputs, in fp32 to the last bit, so scores do not change. After
`InferenceModel.pack_texts`, the model leaves out padding, and outputs differ by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertkit.modeling.architectures import HeadLayers, find_architecture, get_architecture
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
# Standard names of the first `Architecture.config_fields`.
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")


def load_for_inference(
    auto_class: str, folder: Path, labels: Sequence[str], *, problem_type: str | None = None, cls_only: bool = False
) -> Model | None:
    """Load a fine-tuned checkpoint in float32 without transformers' modeling code.

    Args:
        auto_class: Name of transformers' Auto class for the task.
        folder: Model folder.
        labels: Names of the head's outputs, in order.
        problem_type: Kind of labels in transformers' terms.
        cls_only: Whether the last layer computes the first token only.

    Returns:
        the model, or None if the checkpoint needs transformers or is damaged; transformers then reports the error.

    Raises:
        ModelError: If `bertkit.modeling.checkpoint.load_config` raises it.
    """
    config = read_known_config(folder) or load_config(folder)
    if not _is_known(config, auto_class) or config.problem_type not in (None, problem_type):
        return None
    head, width, weights = _find_head(config, auto_class), config.hidden_size, read_weights(folder)
    outputs = 1 if auto_class == "AutoModelForMultipleChoice" else len(labels)
    prefix = get_architecture(config).weight_prefix
    shapes = {f"{prefix}.{name}": size for name, size in get_encoder_shapes(config).items()}
    dense_shape = {head.dense: (width, width)} if head.dense else {}
    shapes |= add_bias_shapes({head.output: (outputs, width), **dense_shape})
    if not are_complete(weights, shapes):
        return None
    return cast("Model", InferenceModel(config, head, weights, cls_only=cls_only))


def read_known_config(folder: Path) -> Config | None:
    """Read the config of a known encoder without transformers, or return None if transformers has to read it.

    transformers fills in missing fields, so all fields that a forward pass reads must be present.

    Raises:
        ModelError: If `bertkit.modeling.checkpoint.check_config` raises it.
    """
    file = folder / "config.json"
    content = read_json_object(file)
    check_config(content, file)
    fields = find_architecture(content["model_type"]).config_fields or ()
    is_typed = all(type(content.get(name)) is (float if name == "layer_norm_eps" else int) for name in fields)
    if not fields or not is_typed or "auto_map" in content or content.get("is_encoder_decoder"):
        return None
    sizes = {name: content[type_name] for name, type_name in zip(_SIZES, fields, strict=False)}
    return cast("Config", SimpleNamespace(**{"problem_type": None, "architectures": None, **content, **sizes}))


def _is_known(config: Config, auto_class: str) -> bool:
    """Return whether a checkpoint has a known class, and the usual value of each setting that changes its outputs."""
    architecture = get_architecture(config)
    class_name = f"{architecture.class_prefix}{auto_class.removeprefix('AutoModel')}"
    return (
        has_known_encoder(config)
        and config.architectures in ([class_name], None)
        and (auto_class != "AutoModelForMultipleChoice" or architecture.choice_head is not None)
        and get_tagger_head(config) is None
    )


def _find_head(config: Config, auto_class: str) -> HeadLayers:
    """Return the layers of a head under their names in a checkpoint."""
    architecture = get_architecture(config)
    if auto_class == "AutoModelForQuestionAnswering":
        return HeadLayers(output="qa_outputs")
    if auto_class == "AutoModelForTokenClassification":
        return HeadLayers()
    head = architecture.choice_head if auto_class == "AutoModelForMultipleChoice" else architecture.text_head
    assert head is not None and head.dense is not None  # checked by `_is_known`
    in_encoder = head.dense.startswith("pooler")
    return replace(head, dense=f"{architecture.weight_prefix}.{head.dense}") if in_encoder else head


class InferenceModel(nn.Module):
    """Encoder of the BERT family with a head, without loss and dropout."""

    def __init__(self, config: Config, head: HeadLayers, weights: Weights, *, cls_only: bool) -> None:
        super().__init__()
        self.config, self.head = config, head
        prefix = f"{get_architecture(config).weight_prefix}."
        encoder_weights = {name.removeprefix(prefix): values for name, values in weights.items()}
        self.encoder = InferenceEncoder(config, encoder_weights, torch.float32)
        self.encoder.packs = False
        self.dense = FusedLinear(weights, torch.float32, head.dense) if head.dense else None
        self.first_only = cls_only and self.dense is not None and get_architecture(config).is_bert_like
        self.output = FusedLinear(weights, torch.float32, head.output)
        self.eval()

    def pack_texts(self) -> None:
        """Leave out padding on a CPU, which changes outputs by rounding."""
        self.encoder.packs = True
        self.first_only = self.dense is not None

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **kwargs: Tensor) -> Tensors:
        """Compute the outputs of texts, shape (rows, tokens), or choices, shape (rows, choices, tokens)."""
        rows = input_ids.shape[:-1]
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **kwargs}
        inputs = {name: values.flatten(0, -2) for name, values in inputs.items() if name in _INPUTS}
        states = self.encoder(**inputs, first_only=self.first_only)["last_hidden_state"]
        # `bertkit.modeling.load.compute_head_in_fp32` explains why autocast is off.
        with torch.autocast(states.device.type, enabled=False):
            if self.dense is not None:
                name = self.head.activation
                activation = getattr(functional if name == "gelu" else torch, name)
                logits = self.output(activation(self.dense(states[:, 0])))
                return {"logits": logits.view(rows) if len(rows) > 1 else logits}
            logits = self.output(states)
        if self.head.output == "classifier":
            return {"logits": logits}
        start, end = logits.unbind(dim=-1)
        return {"start_logits": start.contiguous(), "end_logits": end.contiguous()}
