"""ELECTRA as it is pretrained: a generator that fills gaps, and a discriminator that looks for what it filled in."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraPreTrainedModel
from transformers.utils import ModelOutput

from bertkit.errors import RecipeError
from bertkit.modeling.masked_head import run_at_masked
from bertkit.tokens.features import IGNORED


@dataclass
class PairOutput(ModelOutput):  # type: ignore[misc]
    """What both parts say of a batch."""

    logits: torch.Tensor | None = None
    """(rows, tokens); above 0 where the discriminator takes a token for replaced."""
    replaced: torch.Tensor | None = None
    """(rows, tokens); true where a token is not the original."""
    masked_logits: torch.Tensor | None = None
    """(1, masked, vocabulary), of the generator."""
    masked_labels: torch.Tensor | None = None
    """(masked,), the hidden tokens."""


class ElectraPair(ElectraPreTrainedModel):  # type: ignore[misc]
    """A discriminator and a generator that share their embeddings (Clark et al. 2020, section 3.2).

    The embeddings are those of tokens, positions and types, and the norm of their sum, as in the authors' code.
    """

    base_model_prefix = "discriminator"
    _tied_weights_keys = {r"generator.electra.embeddings\.": r"discriminator.electra.embeddings\."}  # noqa: RUF012

    def __init__(self, discriminator: ElectraForPreTraining, generator: ElectraForMaskedLM) -> None:
        super().__init__(discriminator.config)
        self.discriminator, self.generator = discriminator, generator
        generator.electra.embeddings = discriminator.electra.embeddings
        self.post_init()

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, chances: torch.Tensor, **others: torch.Tensor
    ) -> PairOutput:
        """Fill the gaps of a batch with tokens drawn from the generator, and let the discriminator look at the result.

        No gradient passes from the discriminator into the generator, since a draw has none.

        Args:
            input_ids: (rows, tokens), with gaps.
            labels: (rows, tokens), the hidden tokens; `IGNORED` outside the gaps.
            chances: (rows, tokens), a number from [0, 1) for each token, which decides what is drawn.
            others: what both parts take beside.
        """
        outputs, hidden = run_at_masked(self.generator, {"input_ids": input_ids, "labels": labels, **others})
        gaps = labels != IGNORED
        drawn = draw(outputs.logits.detach()[0], chances[gaps])
        replaced = gaps.masked_scatter(gaps, drawn != hidden)
        logits = self.discriminator(input_ids.masked_scatter(gaps, drawn), **others).logits
        return PairOutput(logits=logits, replaced=replaced, masked_logits=outputs.logits, masked_labels=hidden)


def draw(logits: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """Draw an answer from each softmax by one number from [0, 1): where the summed probabilities pass it.

    One number a draw can come with the batch. So what is drawn depends on no generator of the process, and is the same
    however a batch is split.

    >>> draw(torch.tensor([[0.6, 0.3, 0.1]]).log().repeat(4, 1), torch.tensor([0.0, 0.5, 0.7, 0.95])).tolist()
    [0, 0, 1, 2]
    """
    sums = logits.float().softmax(-1).cumsum(-1)
    found = torch.searchsorted(sums, (chances * sums[:, -1])[:, None], right=True)[:, 0]
    return found.clamp(max=logits.shape[-1] - 1)


def generator_config(config: Any, share: float) -> Any:
    """Give the config of a generator whose layers are as many as the discriminator's, and `share` as wide.

    Raises:
        RecipeError: a share that leaves no whole heads.
    """
    part = Fraction(share).limit_denominator(64)
    heads = config.num_attention_heads * part
    if heads.denominator != 1 or any((width * part).denominator != 1 for width in _widths(config).values()):
        raise RecipeError(
            f"options.generator_size {share} of {config.num_attention_heads} heads and "
            f"{config.hidden_size} hidden units is no whole number",
            f"give a multiple of 1/{config.num_attention_heads}",
        )
    smaller = deepcopy(config)
    smaller.num_attention_heads = int(heads)
    for name, width in _widths(config).items():
        setattr(smaller, name, int(width * part))
    return smaller


def _widths(config: Any) -> dict[str, int]:
    return {name: getattr(config, name) for name in ("hidden_size", "intermediate_size")}
