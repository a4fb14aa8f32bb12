"""Heads for questions and choices over any encoder, for model types for which transformers has none.

They are saved as transformers' own are: the weights of the encoder have its names, so AutoModel loads them.
"""

from __future__ import annotations

import inspect
from functools import cache

import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import MODEL_MAPPING, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import MultipleChoiceModelOutput, QuestionAnsweringModelOutput
from transformers.utils import ModelOutput

from bertkit.modeling.info import Config, Model

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""What encoders read of a batch."""


class EncoderHead:
    """What every such head begins with: an encoder without a pooler, and how to run it."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        encoder = MODEL_MAPPING[type(config)]
        options = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(encoder).parameters else {}
        setattr(self, self.base_model_prefix, encoder(config, **options))  # type: ignore[attr-defined]

    def run_encoder(self, *texts: torch.Tensor | None, **named: object) -> ModelOutput:
        """Run the encoder, which may know no token types, on `INPUTS` in their order or by name."""
        inputs = {**dict(zip(INPUTS, texts, strict=False)), **named}
        return self.base_model(**{name: values for name, values in inputs.items() if values is not None})  # type: ignore[attr-defined]


class AnswerHead(EncoderHead):
    """What is added to an encoder: two logits per token, as in BERT's model for questions."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()  # type: ignore[attr-defined]

    def forward(
        self,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **inputs: torch.Tensor,
    ) -> QuestionAnsweringModelOutput:
        """Compute where an answer starts and where it ends, (rows, tokens) each."""
        states = self.run_encoder(**inputs).last_hidden_state
        start_logits, end_logits = self.qa_outputs(states).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions)  # type: ignore[attr-defined]
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start_logits, end_logits=end_logits)


class ChoiceHead(EncoderHead):
    """What is added to an encoder: one logit per choice, of a pooler over its first token as in BERT's."""

    # also where the config has the heads of transformers read a mean of all tokens
    reads_first_token = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()  # type: ignore[attr-defined]

    def forward(self, labels: torch.Tensor | None = None, **inputs: torch.Tensor) -> MultipleChoiceModelOutput:
        """Compute logits (rows, choices) of inputs (rows, choices, tokens)."""
        texts = {name: inputs[name].flatten(0, 1) for name in INPUTS if inputs.get(name) is not None}
        first = self.run_encoder(**{**inputs, **texts}).last_hidden_state[:, 0]
        logits = self.classifier(self.dropout(self.dense(first).tanh())).view(inputs["input_ids"].shape[:2])
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return MultipleChoiceModelOutput(loss=loss, logits=logits)


def head_dropout(config: Config) -> nn.Dropout:
    """Return the dropout before a classifier: at the config's own rate for it, or at that of its layers."""
    rates = (getattr(config, name, None) for name in ("classifier_dropout", "hidden_dropout_prob"))
    return nn.Dropout(next((rate for rate in rates if rate is not None), 0.0))


_HEADS = {"AutoModelForQuestionAnswering": AnswerHead, "AutoModelForMultipleChoice": ChoiceHead}


def model_class(auto_class: str, config_class: type) -> type[Model]:
    """Return one of transformers' Auto classes, or a class with a generic head where it has none for a model type."""
    found: type[Model] = getattr(transformers, auto_class)
    if auto_class not in _HEADS or config_class in found._model_mapping:
        return found
    return class_with_head(_HEADS[auto_class], config_class, auto_class.removeprefix("AutoModel"))


@cache
def class_with_head(head: type, config_class: type, ending: str) -> type:
    """Build the class of a config class's encoder with a head, which loads from any checkpoint of that encoder."""
    encoder = MODEL_MAPPING[config_class]
    # The parent of BertModel is BertPreTrainedModel, and so on. It brings the config and the initialization, as it does
    # for transformers' own models with a head.
    base = next(parent for parent in encoder.__mro__[1:] if issubclass(parent, PreTrainedModel))
    family = encoder.__name__.removesuffix("Model")
    # transformers renames weights by the name of a class, as its own classes of this encoder do
    if renamed := get_checkpoint_conversion_mapping(f"{family}ForTokenClassification"):
        register_checkpoint_conversion_mapping(family + ending, renamed, overwrite=True)
    return type(family + ending, (head, base), {"__module__": head.__module__})
