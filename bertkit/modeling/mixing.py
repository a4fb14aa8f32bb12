"""Word embeddings between a token's own and that of a baseline token: what explanations vary of an input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class MixedEmbeddings:
    """The word embeddings of a forward pass, each between its own and that of a baseline token."""

    points: list[torch.Tensor] = field(default_factory=list)
    """What the model has read, (texts, tokens, width), a tensor per look-up."""
    differences: list[torch.Tensor] = field(default_factory=list)
    """Own embeddings minus those of the baseline, of the same shape."""


@contextmanager
def mixed_embeddings(model: PreTrainedModel, shares: torch.Tensor, baseline: int) -> Iterator[MixedEmbeddings]:
    """Let a model read word embeddings that are moved towards the one of a baseline token.

    Ids stay as they are, so positions do too, whatever counts them.

    Args:
        model: of any architecture that looks up its input embeddings.
        shares: 1 for a token's own embedding, 0 for the baseline's, shape (..., tokens); its rows are the texts of the
            forward pass, in order.
        baseline: id of the token.
    """
    embedding, mixed, rows = model.get_input_embeddings(), MixedEmbeddings(), shares.flatten(0, -2)
    done = 0

    def mix(module: nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        nonlocal done
        # a model may look up a batch in several chunks, but always its rows in order
        share = rows[done : done + len(output)].to(output).unsqueeze(-1)
        done += len(output)
        # `forward` and not a call, which would run this hook again; the embedding may do more than look up
        start = module.forward(torch.full_like(arguments[0], baseline)).detach()
        difference = output.detach() - start
        point = start + share * difference
        if torch.is_grad_enabled():
            mixed.points.append(point.requires_grad_())
            mixed.differences.append(difference)
        read: torch.Tensor = point
        return read

    hook = embedding.register_forward_hook(mix)
    try:
        yield mixed
    finally:
        hook.remove()
