"""Predict the tokens of a span from what stands around it (SpanBERT: Joshi et al. 2020, section 3.2).

Each token of a masked span is predicted from the last hidden states of the token before the span and of the one after
it, and from the token's position in the span. So these two states learn to represent the whole span.

In ``[CLS] the big cat sat [SEP]`` with ``big cat`` masked, both tokens have start 2 and end 4. They are predicted from
the states of ``the`` (1) and ``sat`` (4), ``big`` with position 0 and ``cat`` with position 1.
"""

from __future__ import annotations

from itertools import chain, pairwise

import torch
from torch import nn
from transformers.utils import ModelOutput

from bertkit.modeling.info import Model
from bertkit.modeling.masked_head import at_labels, run_at_masked
from bertkit.tokens.features import Batch

# those of the paper's code; tokens of a longer span share the last position
_POSITIONS, _POSITION_SIZE = 20, 200


class SpanBoundary(nn.Module):
    """Two layers over both boundaries and the position, scored against a model's word embeddings."""

    def __init__(self, hidden_size: int, embedding_size: int, vocabulary: int, deviation: float) -> None:
        super().__init__()
        # of positions; the name is in checkpoints
        self.places = nn.Embedding(_POSITIONS, _POSITION_SIZE)
        widths = (2 * hidden_size + _POSITION_SIZE, hidden_size, embedding_size)
        layers = [(nn.Linear(width, size), nn.GELU(), nn.LayerNorm(size)) for width, size in pairwise(widths)]
        self.layers = nn.Sequential(*chain.from_iterable(layers))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=deviation)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self, states: torch.Tensor, batch: Batch, starts: torch.Tensor, ends: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        """Compute logits of shape (masked, vocabulary).

        Args:
            states: last hidden states, shape (rows, tokens, width).
            batch: its ``labels``, shape (rows, tokens), tell which tokens are masked.
            starts: index of the first token of each masked token's span, shape (rows, tokens).
            ends: index of the token after its last, shape (rows, tokens).
            words: embeddings of the vocabulary, shape (vocabulary, embedding).
        """
        # All masked tokens of the batch in one list, (masked, ...): no loop over spans, and nothing is computed for the
        # tokens that are not masked. Both boundaries are picked by index from (rows, tokens, width).
        numbers = at_labels(torch.arange(starts.numel(), device=starts.device).view(starts.shape), batch)
        rows, columns = numbers // starts.shape[1], numbers % starts.shape[1]
        starts, ends = starts.flatten()[numbers], ends.flatten()[numbers]
        left = states[rows, (starts - 1).clamp(min=0)]
        right = states[rows, ends.clamp(max=states.shape[1] - 1)]
        position = self.places((columns - starts).clamp(max=_POSITIONS - 1))
        predicted: torch.Tensor = self.layers(torch.cat([left, right, position.to(left.dtype)], dim=-1))
        return nn.functional.linear(predicted, words, self.bias)


def add_span_boundary(model: Model) -> None:
    """Add the head over boundaries to a masked language model, as its submodule ``span_boundary``."""
    vocabulary, width = model.get_input_embeddings().weight.shape
    deviation = getattr(model.config, "initializer_range", 0.02)
    model.span_boundary = SpanBoundary(model.config.hidden_size, width, vocabulary, deviation)


def run_with_boundaries(
    model: Model, inputs: Batch, starts: torch.Tensor, ends: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run a model with its boundary head, which is part of its forward pass.

    Only there is autocast on, and only there do several processes add up gradients.

    Args:
        model: with the submodule ``span_boundary``; possibly in a wrapper for several processes.
        inputs: of the model, with ``labels``.
        starts: as in `SpanBoundary.forward`.
        ends: likewise.

    Returns:
        logits of masked tokens, shape (1, masked, vocabulary); their labels, shape (masked,); their logits from the
        boundaries, shape (masked, vocabulary).
    """
    boundary_logits = []
    unwrapped = getattr(model, "module", model)

    def run_boundary_head(module: object, arguments: object, outputs: ModelOutput) -> None:
        embeddings = unwrapped.get_input_embeddings().weight
        boundary_logits.append(unwrapped.span_boundary(outputs["last_hidden_state"], inputs, starts, ends, embeddings))

    # registered before the hook that gathers the masked positions, so it sees the states of all tokens
    with unwrapped.base_model.register_forward_hook(run_boundary_head):
        outputs, labels = run_at_masked(model, inputs)
    return outputs.logits, labels, boundary_logits[0]
