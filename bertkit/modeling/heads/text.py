"""Heads for answers and choices, for model types without such a head in transformers, and for windows of long texts."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
)

from bertkit.modeling.heads.base import INPUTS, EncoderHead, build_head_class, make_head_dropout
from bertkit.modeling.heads.mixins import find_windows, run_windows, sum_over_rows, text_loss
from bertkit.modeling.info import Config, Model


class AnswerHead(EncoderHead):
    """Head with two logits per token, as in BertForQuestionAnswering."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(
        self,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **inputs: Tensor,
    ) -> QuestionAnsweringModelOutput:
        """Compute the logits of an answer's start and end, both (rows, tokens)."""
        states = self.run_encoder(**inputs).last_hidden_state
        start_logits, end_logits = self.qa_outputs(states).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=start_logits, end_logits=end_logits)


class ChoiceHead(EncoderHead):
    """Head with one logit per choice, from a pooler over the first token, as in BertForMultipleChoice."""

    reads_first_token = True
    """Whether the head reads the first token only, regardless of `classifier_pooling` in the config."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = make_head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> MultipleChoiceModelOutput:
        """Compute logits (rows, choices) of inputs (rows, choices, tokens)."""
        texts = {name: inputs[name].flatten(0, 1) for name in INPUTS if inputs.get(name) is not None}
        first = self.run_encoder(**{**inputs, **texts}).last_hidden_state[:, 0]
        logits = self.classifier(self.dropout(self.dense(first).tanh())).view(inputs["input_ids"].shape[:2])
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return MultipleChoiceModelOutput(loss=loss, logits=logits)


class WindowPooling(EncoderHead):
    """Classifier over an attention-weighted mean of a row's windows ("hierarchical").

    The weights are a softmax over the windows, as in Yang et al. 2016 ("Hierarchical Attention Networks", section 2.2).
    The vector of a window is the last hidden state of its first token.
    """

    reads = "windows"
    accepts_row_mask = True
    reads_first_token = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.window_dense, self.window_score = nn.Linear(width, width), nn.Linear(width, 1, bias=False)
        self.dense, self.classifier = nn.Linear(width, width), nn.Linear(width, config.num_labels)
        self.dropout = make_head_dropout(config)
        self.post_init()

    def forward(
        self, labels: Tensor | None = None, row_mask: Tensor | None = None, **kwargs: Tensor
    ) -> SequenceClassifierOutput:
        """Compute logits (rows, labels) of inputs (rows, windows, tokens)."""
        is_window = find_windows(kwargs["attention_mask"])
        inputs = {name: kwargs.pop(name, None) for name in INPUTS}

        # (rows, windows, width); a missing window has the vector 0 and the weight 0
        vectors = run_windows(
            lambda **flat: self.run_encoder(**flat, **kwargs).last_hidden_state[:, 0], inputs, row_mask, 0.0
        )
        logits = self.classify(vectors.float(), is_window)
        loss = None
        if labels is not None:
            is_row = torch.ones_like(is_window[:, 0]) if row_mask is None else row_mask
            loss = sum_over_rows(text_loss(self.config), logits, labels, is_row) / is_row.sum()
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def classify(self, vectors: Tensor, is_window: Tensor) -> Tensor:
        """Compute logits (rows, labels) from the vectors of windows (rows, windows, width)."""
        scores = self.window_score(self.window_dense(vectors).tanh()).squeeze(-1)
        weights = scores.masked_fill(~is_window, -torch.inf).softmax(dim=-1)
        pooled = (weights[..., None] * vectors).sum(dim=1)
        logits: Tensor = self.classifier(self.dropout(self.dense(self.dropout(pooled)).tanh()))
        return logits


_HEADS = {"AutoModelForQuestionAnswering": AnswerHead, "AutoModelForMultipleChoice": ChoiceHead}


def find_model_class(auto_class: str, config_class: type) -> type[Model]:
    """Return one of transformers' Auto classes or, for a model type that it lacks, a class with a head of bertkit."""
    model_class: type[Model] = getattr(transformers, auto_class)
    if auto_class not in _HEADS or config_class in model_class._model_mapping:
        return model_class
    return build_head_class(_HEADS[auto_class], config_class, auto_class.removeprefix("AutoModel"))
