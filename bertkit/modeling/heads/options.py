"""A head with one logit per option of a question: how well the option, read beside a text, goes with the text.

A sequence is ``[CLS] state [SEP] question [MASK] option [MASK] option [SEP] question ... [SEP]``. The state attends to
itself alone, a question to the state and to itself. So an answer depends on no other question, and several questions
share one pass over the state. Which token belongs to what is told from the ids, and a graph reads nothing else.

Seven tokens, of which 4 separates and 3 is the mask token: a state of three, a question of one, and an option of two.

>>> parts = Parts(torch.tensor([[2, 9, 4, 8, 3, 7, 4]]), torch.ones(1, 7, dtype=torch.long), separator=4, marker=3)
>>> parts.question.tolist(), parts.option.tolist()
([[0, 0, 0, 1, 1, 1, 1]], [[0, 0, 0, 0, 1, 1, 0]])
"""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.nn import functional
from transformers import MODEL_MAPPING
from transformers.modeling_outputs import TokenClassifierOutput

from bertkit.modeling.architectures import architecture_of, first_position
from bertkit.modeling.heads.base import EncoderHead, head_dropout, with_head
from bertkit.modeling.info import Config, Model
from bertkit.tokens.features import IGNORED
from bertkit.tokens.questions import ORDINAL

_SCALE = 20.0  # of cosines at first, as in the losses of sentence-transformers


class Parts:
    """The parts of sequences: arrays (sequences, tokens), or (sequences, tokens, tokens) of pairs."""

    def __init__(self, ids: torch.Tensor, mask: torch.Tensor, separator: int, marker: int) -> None:
        is_separator = (ids == separator).long()
        is_token = (mask == 1).unsqueeze(1)
        self.question = is_separator.cumsum(dim=1) - is_separator
        """The number of its question; 0 in the state. A separator ends its part."""
        self.is_marker = (ids == marker) & (mask == 1) & (self.question > 0)
        self.same = (self.question.unsqueeze(2) == self.question.unsqueeze(1)) & is_token
        """Whether the second token of a pair is one of the same question, or both are of the state."""
        self.earlier = self.same.tril()
        """Whether it is the first token itself or one before it in the same part."""
        count = (self.earlier & self.is_marker.unsqueeze(1)).sum(dim=2)
        self.option = torch.where(is_separator == 1, 0, count)
        """The number of its option in the question, from 1; 0 in instructions and in the state."""
        self.attends = self.same | ((self.question == 0).unsqueeze(1) & is_token)
        """Whether the first token of a pair may attend to the second."""
        in_state = (self.question == 0).sum(dim=1, keepdim=True)
        self.positions = self.earlier.sum(dim=2) - 1 + torch.where(self.question == 0, 0, in_state)
        """The position of each token: every question goes on where the state ends."""


class OptionHead(EncoderHead):
    """What is added to an encoder: logits of the mean states of options, and their cosines with that of the state."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dropout = head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.scale = nn.Linear(1, 1, bias=False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> TokenClassifierOutput:
        """Compute ``logits`` (sequences, tokens, 1), which count at the mask tokens of options, and the loss."""
        config = self.config  # type: ignore[attr-defined]
        parts = Parts(input_ids, attention_mask, config.option_separator, config.option_marker)
        named = {"position_ids": parts.positions + first_position(config)} if takes_positions(config) else {}
        # some multiply their embeddings by the mask, so their state attends to the question too
        embeddings = getattr(self.base_model, "embeddings", None)  # type: ignore[attr-defined]
        multiplies = embeddings is not None and "mask" in inspect.signature(embeddings.forward).parameters
        allowed = attention_mask if multiplies else parts.attends.unsqueeze(1)
        states = self.run_encoder(input_ids, allowed, token_type_ids, **named).last_hidden_state.float()
        # means over the tokens of one option, and over those of the state: products with rows of ones
        of_option = parts.same & (parts.option.unsqueeze(2) == parts.option.unsqueeze(1))
        is_state = ((parts.question == 0) & (attention_mask == 1)).unsqueeze(1)
        # each of (sequences, parts, tokens)
        weights = (part.to(states.dtype) for part in (of_option, is_state))
        options, state = (part @ states / part.sum(dim=2, keepdim=True).clamp(min=1) for part in weights)
        cosines = functional.cosine_similarity(options, state.expand_as(options), dim=-1).unsqueeze(-1)
        logits = self.classifier(self.dropout(options)) + _SCALE * (cosines + self.scale(cosines))
        loss = None if labels is None else option_loss(logits[..., 0], parts, labels)
        return TokenClassifierOutput(loss=loss, logits=logits)


def _sum_over(pairs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum for each token the values (sequences, tokens) of those that it makes a pair with."""
    return (pairs.to(values.dtype) @ values.unsqueeze(2)).squeeze(2)


def takes_positions(config: Config) -> bool:
    """Tell whether an encoder can be told the position of each token, and attends by nothing else."""
    parameters = inspect.signature(MODEL_MAPPING[type(config)].forward).parameters
    has_windows = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    return "position_ids" in parameters and not (has_windows or architecture_of(config).attends_relatively)


def option_class(config_class: type) -> type[Model]:
    """Return the class of an encoder of a config class with this head."""
    return with_head(OptionHead, config_class, "ForTypedQuestions")


def option_loss(logits: torch.Tensor, parts: Parts, labels: torch.Tensor) -> torch.Tensor:
    """Compute the mean loss of the questions that have an answer.

    Of labels it is the cross entropy. Of levels it is the ranked probability score (Epstein 1969): the squared
    differences of the cumulative probabilities from those of the gold level, over the number of levels less one. So a
    level nearby costs less than one far away.

    Args:
        logits: of shape (sequences, tokens).
        parts: of the sequences.
        labels: `NOMINAL` or `ORDINAL` at the mask token of the gold option, `IGNORED` elsewhere, of the same shape.
    """
    is_gold, is_option = labels != IGNORED, parts.same & parts.is_marker.unsqueeze(1)
    of_question = logits.unsqueeze(1).masked_fill(~is_option, torch.finfo(logits.dtype).min)
    logs = logits - of_question.logsumexp(dim=2)
    likely = torch.where(parts.is_marker, logs, 0.0).exp() * parts.is_marker
    # how likely the options up to each are together, and whether the gold one is among them
    reached, passed = _sum_over(parts.earlier, likely), _sum_over(parts.earlier, is_gold.to(logits.dtype))
    squares = (reached - passed).square() * parts.is_marker
    ranked = _sum_over(is_option, squares) / (is_option.sum(dim=2) - 1).clamp(min=1)
    losses = torch.where(labels == ORDINAL, ranked, -logs)
    return torch.where(is_gold, losses, 0.0).sum() / is_gold.sum()
