"""Predict the tokens of a span from what stands around it (SpanBERT: Joshi et al. 2020, section 3.2).

A token of a masked span is told from the last hidden states of the token before the span and of the one after it, and
from the token's place in the span. So these two states learn to stand for the whole span.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

_PLACES, _PLACE_SIZE = 20, 200  # those of the paper's code; tokens beyond the last place share it


class SpanBoundary(nn.Module):
    """Two layers over both boundaries and the place, scored against a model's word embeddings."""

    def __init__(self, hidden_size: int, embedding_size: int, vocabulary: int, deviation: float) -> None:
        super().__init__()
        self.places = nn.Embedding(_PLACES, _PLACE_SIZE)
        widths = (2 * hidden_size + _PLACE_SIZE, hidden_size, embedding_size)
        self.layers = nn.Sequential(
            *(
                part
                for width, size in pairwise(widths)
                for part in (nn.Linear(width, size), nn.GELU(), nn.LayerNorm(size))
            )
        )
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for part in self.modules():
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=deviation)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)

    def forward(
        self, states: torch.Tensor, places: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        """Give logits of shape (masked, vocabulary).

        Args:
            states: last hidden states, shape (rows, tokens, width).
            places: whether a token is masked, shape (rows, tokens).
            starts: first token of each masked token's span, shape (rows, tokens).
            ends: the one after its last.
            words: embeddings of the vocabulary, shape (vocabulary, embedding).
        """
        rows, columns = places.nonzero(as_tuple=True)
        starts, ends = starts[places], ends[places]
        left = states[rows, (starts - 1).clamp(min=0)]
        right = states[rows, ends.clamp(max=states.shape[1] - 1)]
        place = self.places((columns - starts).clamp(max=_PLACES - 1))
        found: torch.Tensor = self.layers(torch.cat([left, right, place.to(left.dtype)], dim=-1))
        return nn.functional.linear(found, words, self.bias)


def add_span_boundary(model: Any) -> None:
    """Give a masked language model the head over boundaries, as its part ``span_boundary``."""
    vocabulary, width = model.get_input_embeddings().weight.shape
    deviation = getattr(model.config, "initializer_range", 0.02)
    model.span_boundary = SpanBoundary(model.config.hidden_size, width, vocabulary, deviation)
