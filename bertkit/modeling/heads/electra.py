"""ELECTRA in pretraining: a generator that replaces masked tokens, and a discriminator that detects these."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction

import torch
from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraPreTrainedModel

from bertkit.errors import RecipeError
from bertkit.hardware.device import Device
from bertkit.modeling.info import Config
from bertkit.modeling.masked_head import LABEL_POSITIONS, at_labels, put_at_labels, run_at_masked
from bertkit.tokens.features import IGNORED, Tensors


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
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        draws: torch.Tensor,
        label_positions: torch.Tensor | None = None,
        **others: torch.Tensor,
    ) -> Tensors:
        """Replace masked tokens by samples from the generator, and let the discriminator detect them.

        No gradient passes from the discriminator into the generator, since sampling has none.

        Args:
            input_ids: (rows, tokens), some of them masked.
            labels: (rows, tokens), the original tokens; `IGNORED` where nothing is masked.
            draws: (rows, tokens), a random number from [0, 1) per token, which decides the sample.
            label_positions: of a batch of few shapes; see `LABEL_POSITIONS`.
            others: what both models read besides, such as an attention mask.

        Returns:
            ``logits`` (rows, tokens), above 0 where the discriminator takes a token for ``replaced``, (rows, tokens);
            the generator's ``masked_logits`` (1, masked, vocabulary), and the original tokens, ``masked_labels``
            (masked,).
        """
        given = {} if label_positions is None else {LABEL_POSITIONS: label_positions}
        masked_batch = {"labels": labels, **given}
        outputs, originals = run_at_masked(self.generator, {"input_ids": input_ids, **masked_batch, **others})
        masked = labels != IGNORED
        samples = draw(outputs.logits.detach()[0], at_labels(draws, masked_batch))
        # Samples (masked,) go back to (rows, tokens). One that happens to be the original counts as original (section 2
        # of the paper).
        replaced = put_at_labels(samples != originals, masked_batch, torch.zeros_like(masked))
        logits = self.discriminator(put_at_labels(samples, masked_batch, input_ids), **others).logits
        of_generator = {"masked_logits": outputs.logits, "masked_labels": originals}
        return {"logits": logits, "replaced": replaced, **of_generator}


def draw(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Sample a token from each softmax: logits (masked, vocabulary) and random numbers (masked,) to ids (masked,).

    The sample is the first token at which the cumulative probability exceeds the random number. These numbers come with
    the batch, so samples depend on no generator of the process and are the same however a batch is split.

    >>> draw(torch.tensor([[0.6, 0.3, 0.1]]).log().repeat(4, 1), torch.tensor([0.0, 0.5, 0.7, 0.95])).tolist()
    [0, 0, 1, 2]
    """
    sums = logits.float().softmax(-1).cumsum(-1)
    # Cumulative probabilities (masked, vocabulary), and a binary search in each row: one random number per sample,
    # where Gumbel noise needs one per token of the vocabulary. Rounding leaves the last sum off 1, hence the scaling.
    goals = (draws * sums[:, -1])[:, None]
    if Device(sums.device.type).shapes_may_change:
        samples = torch.searchsorted(sums, goals, right=True)[:, 0]
    else:  # XLA has no such search
        samples = (sums <= goals).sum(dim=-1)
    return samples.clamp(max=logits.shape[-1] - 1)


def generator_config(config: Config, share: float) -> Config:
    """Build the config of a generator with as many layers as the discriminator, each `share` as wide.

    Raises:
        RecipeError: a share of the heads or of a width is not a whole number.
    """
    fraction = Fraction(share).limit_denominator(64)
    heads = config.num_attention_heads * fraction
    if heads.denominator != 1 or any((width * fraction).denominator != 1 for width in _widths(config).values()):
        sizes = f"{config.num_attention_heads} heads and {config.hidden_size} hidden units"
        what = f"options.generator_size {share} of {sizes} is not a whole number"
        raise RecipeError(what, f"give a multiple of 1/{config.num_attention_heads}")
    smaller = deepcopy(config)
    smaller.num_attention_heads = int(heads)
    for name, width in _widths(config).items():
        setattr(smaller, name, int(width * fraction))
    return smaller


def _widths(config: Config) -> dict[str, int]:
    return {name: getattr(config, name) for name in ("hidden_size", "intermediate_size")}
