"""A head over the windows of a text: attention over their vectors, and a classifier ("hierarchical")."""

from __future__ import annotations

import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from bertkit.modeling.heads.generic import INPUTS, EncoderHead, class_with_head, head_dropout
from bertkit.modeling.heads.windows import CLASS_ENDING, find_windows, run_windows, sum_over_rows, text_loss
from bertkit.modeling.info import Config, Model, info_of


class WindowPooling(EncoderHead):
    """What is added to an encoder: attention over the vectors of a row's windows, and a classifier.

    The weights of the windows are those of Yang et al. 2016 ("Hierarchical Attention Networks", section 2.2): a softmax
    over the windows. The vector of a window is the last hidden state of its first token.
    """

    # also where the config has the heads of transformers read a mean of all tokens
    reads_first_token = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.window_dense, self.window_score = nn.Linear(width, width), nn.Linear(width, 1, bias=False)
        self.dense, self.classifier = nn.Linear(width, width), nn.Linear(width, config.num_labels)
        self.dropout = head_dropout(config)
        info_of(self).reads, info_of(self).takes_row_mask = "windows", True
        self.post_init()  # type: ignore[attr-defined]

    def forward(
        self, labels: torch.Tensor | None = None, row_mask: torch.Tensor | None = None, **named: torch.Tensor
    ) -> SequenceClassifierOutput:
        """Compute logits (rows, labels) of inputs (rows, windows, tokens)."""
        is_window = find_windows(named["attention_mask"])
        inputs = {name: named.pop(name, None) for name in INPUTS}

        # (rows, windows, width), zero where a row lacks a window, whose weight is zero as well
        vectors = run_windows(
            lambda **flat: self.run_encoder(**flat, **named).last_hidden_state[:, 0], inputs, row_mask, 0.0
        )
        logits = self.classify(vectors.float(), is_window)
        loss = None
        if labels is not None:
            is_row = torch.ones_like(is_window[:, 0]) if row_mask is None else row_mask
            loss = sum_over_rows(text_loss(self.config), logits, labels, is_row) / is_row.sum()  # type: ignore[attr-defined]
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def classify(self, vectors: torch.Tensor, is_window: torch.Tensor) -> torch.Tensor:
        """Compute logits (rows, labels) of the vectors of windows (rows, windows, width), some of which are none."""
        scores = self.window_score(self.window_dense(vectors).tanh()).squeeze(-1)
        weights = scores.masked_fill(~is_window, -torch.inf).softmax(dim=-1)
        pooled = (weights[..., None] * vectors).sum(dim=1)
        logits: torch.Tensor = self.classifier(self.dropout(self.dense(self.dropout(pooled)).tanh()))
        return logits


def window_pooling_class(config_class: type) -> type[Model]:
    """Build the class of a config class's encoder with this head, which loads from any checkpoint of that encoder."""
    return class_with_head(WindowPooling, config_class, CLASS_ENDING)
