"""Head for questions about a text (the state), with one logit per answer option.

A sequence is ``[CLS] state [SEP] question [MASK] option [MASK] option [SEP] question ... [SEP]``. The state attends
only to itself, and a question to the state and to itself. So an answer depends on no other question, and several
questions share one pass over the state. The token ids determine the part of each token, so an exported graph needs no
other input.

In this example, 4 is the separator and 3 the mask token. The state has three tokens (2 9 4), the question one (8), its
only option two (3 7), and a separator ends the question:

>>> ids, mask = torch.tensor([[2, 9, 4, 8, 3, 7, 4]]), torch.ones(1, 7, dtype=torch.long)
>>> parts = SequenceParts(ids, mask, separator=4, marker=3)
>>> parts.question_index.tolist(), parts.option_index.tolist()
([[0, 0, 0, 1, 1, 1, 1]], [[0, 0, 0, 0, 1, 1, 0]])
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import MODEL_MAPPING
from transformers.modeling_outputs import TokenClassifierOutput

from bertkit.modeling.architectures import first_position, get_architecture
from bertkit.modeling.heads.base import EncoderHead, build_head_class, make_head_dropout
from bertkit.modeling.info import Config, Model
from bertkit.tokens.features import IGNORE_INDEX
from bertkit.tokens.questions import ORDINAL

ENDING = "ForTypedQuestions"
"""End of the class names in ``architectures`` of config.json."""
# Initial factor of cosines, as in the losses of sentence-transformers.
_SCALE = 20.0


class SequenceParts:
    """State, questions and options of sequences.

    Tensors have the shape (sequences, tokens) or, for pairs of tokens, (sequences, tokens, tokens).
    """

    def __init__(self, ids: Tensor, mask: Tensor, separator: int, marker: int) -> None:
        is_separator = (ids == separator).long()
        is_token = (mask == 1).unsqueeze(1)
        self.question_index = is_separator.cumsum(dim=1) - is_separator
        """Index of the token's question, from 1; 0 in the state. A separator belongs to the part that it ends."""
        self.is_marker = (ids == marker) & (mask == 1) & (self.question_index > 0)
        self.in_same_part = (self.question_index.unsqueeze(2) == self.question_index.unsqueeze(1)) & is_token
        """Whether both tokens of a pair are in the same question, or both in the state."""
        self.is_earlier = self.in_same_part.tril()
        """Whether the second token of a pair is the first token or an earlier token in the same part."""
        count = (self.is_earlier & self.is_marker.unsqueeze(1)).sum(dim=2)
        self.option_index = torch.where(is_separator == 1, 0, count)
        """Index of the token's option in the question, from 1; 0 in the question's text and in the state."""
        self.can_attend = self.in_same_part | ((self.question_index == 0).unsqueeze(1) & is_token)
        """Whether the first token of a pair can attend to the second."""
        state_length = (self.question_index == 0).sum(dim=1, keepdim=True)
        self.positions = self.is_earlier.sum(dim=2) - 1 + torch.where(self.question_index == 0, 0, state_length)
        """Position of each token; the positions of every question start after the state."""


class OptionHead(EncoderHead):
    """Head that computes logits from the mean hidden state of each option, and its cosine with the mean of the text."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dropout = make_head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.scale = nn.Linear(1, 1, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> TokenClassifierOutput:
        """Compute ``logits`` (sequences, tokens, 1), used only at the mask tokens of options, and the loss."""
        # 1. Run the encoder with a mask per pair of tokens.
        config = self.config
        parts = SequenceParts(input_ids, attention_mask, config.option_separator, config.option_marker)
        kwargs = {"position_ids": parts.positions + first_position(config)} if takes_position_ids(config) else {}
        # Some models multiply their embeddings by the mask, so it must be (sequences, tokens). Their state attends to
        # the questions too.
        embeddings = getattr(self.base_model, "embeddings", None)
        multiplies = embeddings is not None and "mask" in inspect.signature(embeddings.forward).parameters
        allowed = attention_mask if multiplies else parts.can_attend.unsqueeze(1)
        states = self.run_encoder(input_ids, allowed, token_type_ids, **kwargs).last_hidden_state.float()

        # 2. Average the hidden states of each token's option, and of the state, by products with rows of ones.
        same_option = parts.in_same_part & (parts.option_index.unsqueeze(2) == parts.option_index.unsqueeze(1))
        is_state = ((parts.question_index == 0) & (attention_mask == 1)).unsqueeze(1)
        # (sequences, tokens, tokens) for options, and (sequences, 1, tokens) for the state
        masks = (mask.to(states.dtype) for mask in (same_option, is_state))
        options, state = (mask @ states / mask.sum(dim=2, keepdim=True).clamp(min=1) for mask in masks)

        # 3. Compute logits and loss.
        cosines = functional.cosine_similarity(options, state.expand_as(options), dim=-1).unsqueeze(-1)
        logits = self.classifier(self.dropout(options)) + _SCALE * (cosines + self.scale(cosines))
        loss = None if labels is None else option_loss(logits[..., 0], parts, labels)
        return TokenClassifierOutput(loss=loss, logits=logits)


def _sum_over(pairs: Tensor, values: Tensor) -> Tensor:
    """Sum, for each token, the values of the tokens that form a pair with it. Shape: (sequences, tokens)."""
    return (pairs.to(values.dtype) @ values.unsqueeze(2)).squeeze(2)


def takes_position_ids(config: Config) -> bool:
    """Return whether an encoder takes position ids, and uses positions for nothing else, such as sliding windows."""
    parameters = inspect.signature(MODEL_MAPPING[type(config)].forward).parameters
    has_windows = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    return "position_ids" in parameters and not (has_windows or get_architecture(config).has_relative_attention)


def build_option_class(config_class: type) -> type[Model]:
    """Return the class of an encoder with an `OptionHead`, by the encoder's config class."""
    return build_head_class(OptionHead, config_class, ENDING)


def option_loss(logits: Tensor, parts: SequenceParts, labels: Tensor) -> Tensor:
    """Compute the mean loss of the questions that have a gold answer.

    For nominal options, it is the cross-entropy. For ordinal options (levels), it is the ranked probability score
    (Epstein 1969): the squared differences between the cumulative probabilities of the model and of the gold level,
    divided by the number of levels minus one. So a level close to the gold level costs less than a distant level.

    Args:
        logits: Logits. Shape: (sequences, tokens).
        parts: Parts of the sequences.
        labels: `NOMINAL` or `ORDINAL` at the mask token of the gold option, else `IGNORE_INDEX`. Shape: (sequences,
            tokens).
    """
    # 1. Softmax over the options of each question, at the mask tokens.
    is_gold, is_option = labels != IGNORE_INDEX, parts.in_same_part & parts.is_marker.unsqueeze(1)
    option_logits = logits.unsqueeze(1).masked_fill(~is_option, torch.finfo(logits.dtype).min)
    log_probs = logits - option_logits.logsumexp(dim=2)
    probabilities = torch.where(parts.is_marker, log_probs, 0.0).exp() * parts.is_marker
    # 2. Cumulative probabilities over the options, for the model and for the gold option.
    cumulative = _sum_over(parts.is_earlier, probabilities)
    gold_cumulative = _sum_over(parts.is_earlier, is_gold.to(logits.dtype))
    squares = (cumulative - gold_cumulative).square() * parts.is_marker
    ranked_score = _sum_over(is_option, squares) / (is_option.sum(dim=2) - 1).clamp(min=1)
    losses = torch.where(labels == ORDINAL, ranked_score, -log_probs)
    return torch.where(is_gold, losses, 0.0).sum() / is_gold.sum()
