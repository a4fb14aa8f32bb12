"""A head with one logit per option of a question, read at a token of its own among those of all options.

The four tokens of a row, two of which stand for options. The loss compares these two alone:

>>> logits, markers = torch.tensor([[9.0, 1.0, 9.0, 1.0]]), torch.tensor([[0, 1, 0, 1]])
>>> round(float(option_loss(logits, markers, torch.tensor([[IGNORED, IGNORED, IGNORED, NOMINAL]]))), 4)  # ln 2
0.6931
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from bertkit.modeling.info import Model
from bertkit.tokens.features import IGNORED

if TYPE_CHECKING:
    from transformers.utils import ModelOutput

NOMINAL, ORDINAL = 0, 1
"""The label at the token of the gold option: its question has labels, or levels in the order of their tokens."""


def score_options(model: Model) -> None:
    """Let a model with one logit per token compute the loss of questions."""
    model.forward = partial(_forward, model.forward)


def _forward(
    forward: Callable[..., ModelOutput],
    *,
    markers: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    **inputs: torch.Tensor,
) -> ModelOutput:
    """Compute ``logits`` (questions, tokens, 1), and the loss where there are labels."""
    output = forward(**inputs)
    output.logits = output.logits.float()
    if labels is not None and markers is not None:
        output.loss = option_loss(output.logits[..., 0], markers, labels)
    return output


def option_loss(logits: torch.Tensor, markers: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute the mean loss of the questions that have an answer.

    Of labels it is the cross entropy. Of levels it is the ranked probability score (Epstein 1969): the squared
    differences of the cumulative probabilities from those of the gold level, over the number of levels less one. So a
    level nearby costs less than one far away.

    Args:
        logits: of shape (questions, tokens).
        markers: 1 at the token of each option, and 0 elsewhere, of the same shape.
        labels: `NOMINAL` or `ORDINAL` at the token of the gold option, `IGNORED` elsewhere, of the same shape.
    """
    is_gold = labels != IGNORED
    logs = logits.masked_fill(markers == 0, torch.finfo(logits.dtype).min).log_softmax(dim=-1)
    # of what is no option, the logarithm is a huge negative number that 0 would not cancel
    entropy = -logs.where(is_gold, 0.0).sum(dim=-1)
    reached = (logs.exp() * markers).cumsum(dim=-1) - is_gold.cumsum(dim=-1)
    ranked = (reached.square() * markers).sum(dim=-1) / (markers.sum(dim=-1) - 1).clamp(min=1)
    is_ordinal = (labels == ORDINAL).any(dim=-1)
    return torch.where(is_ordinal, ranked, entropy).sum() / is_gold.sum()
