"""Heads of pretraining: ELECTRA's generator and discriminator, and SpanBERT's head over the boundaries of spans."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from itertools import chain, pairwise

import torch
from torch import Tensor, nn
from transformers import ElectraForMaskedLM, ElectraForPreTraining, ElectraPreTrainedModel
from transformers.utils import ModelOutput

from bertkit.errors import RecipeError
from bertkit.hardware.device import Device
from bertkit.modeling.info import Config, Model, unwrap
from bertkit.modeling.masked_head import LABEL_POSITIONS, gather_labeled, run_at_masked, scatter_labeled
from bertkit.tokens.features import IGNORE_INDEX, Batch, Tensors

# Sizes of the paper's code for `SpanBoundary`. Tokens of a longer span share the last position.
_POSITIONS, _POSITION_SIZE = 20, 200


class ElectraPair(ElectraPreTrainedModel):  # type: ignore[misc]
    """A discriminator and a generator that share their embeddings (Clark et al. 2020, section 3.2).

    They share the embeddings of tokens, positions and types, and the norm of the sum, as in the authors' code.
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
        input_ids: Tensor,
        labels: Tensor,
        draws: Tensor,
        label_positions: Tensor | None = None,
        **named: Tensor,
    ) -> Tensors:
        """Replace masked tokens by samples from the generator, and let the discriminator detect them.

        No gradient passes from the discriminator into the generator, because sampling has none.

        Args:
            input_ids: Token ids (rows, tokens), some of them masked.
            labels: Original tokens (rows, tokens), `IGNORE_INDEX` for tokens that are not masked.
            draws: A random number from [0, 1) per token, (rows, tokens), which decides the sample.
            label_positions: `LABEL_POSITIONS` of a batch of few shapes.
            named: Other inputs of both models, such as an attention mask.

        Returns:
            ``logits`` (rows, tokens), above 0 for tokens that the discriminator classifies as replaced; ``replaced``
            (rows, tokens), whether they are; the generator's ``masked_logits`` (1, masked, vocabulary), and the
            original tokens, ``masked_labels`` (masked,).
        """
        positions = {} if label_positions is None else {LABEL_POSITIONS: label_positions}
        masked_batch = {"labels": labels, **positions}
        outputs, originals = run_at_masked(self.generator, {"input_ids": input_ids, **masked_batch, **named})
        masked = labels != IGNORE_INDEX
        samples = sample_tokens(outputs.logits.detach()[0], gather_labeled(draws, masked_batch))
        # Samples (masked,) go back to (rows, tokens). One that happens to be the original counts as original (section 2
        # of the paper).
        replaced = scatter_labeled(samples != originals, masked_batch, torch.zeros_like(masked))
        logits = self.discriminator(scatter_labeled(samples, masked_batch, input_ids), **named).logits
        generated = {"masked_logits": outputs.logits, "masked_labels": originals}
        return {"logits": logits, "replaced": replaced, **generated}


def sample_tokens(logits: Tensor, draws: Tensor) -> Tensor:
    """Sample a token from each softmax: logits (masked, vocabulary) and random numbers (masked,) to ids (masked,).

    The sample is the first token at which the cumulative probability exceeds the random number. These numbers come with
    the batch, so samples depend on no generator of the process and are the same however a batch is split.

    >>> sample_tokens(torch.tensor([[0.6, 0.3, 0.1]]).log().repeat(4, 1), torch.tensor([0.0, 0.5, 0.7, 0.95])).tolist()
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


def make_generator_config(config: Config, share: float) -> Config:
    """Build the config of a generator with the layers of the discriminator, and a share of its heads and widths.

    Raises:
        RecipeError: If this share of the heads or of a width is not an integer.
    """
    fraction = Fraction(share).limit_denominator(64)
    smaller = deepcopy(config)
    for name in ("num_attention_heads", "hidden_size", "intermediate_size"):
        size = getattr(config, name) * fraction
        if size.denominator != 1:
            sizes = f"{config.num_attention_heads} heads and {config.hidden_size} hidden units"
            message = f"options.generator_size {share} of {sizes} is not an integer"
            raise RecipeError(message, f"give a multiple of 1/{config.num_attention_heads}")
        setattr(smaller, name, int(size))
    return smaller


class SpanBoundary(nn.Module):
    """Head that predicts the tokens of a span from the tokens around it (Joshi et al. 2020, section 3.2).

    Each token of a masked span is predicted from the last hidden states of the token before the span and of the token
    after it, and from its position in the span, by two layers whose output is compared with the word embeddings. So
    these two states learn to represent the whole span.

    In ``[CLS] the big cat sat [SEP]`` with ``big cat`` masked, both tokens have start 2 and end 4. They are predicted
    from the states of ``the`` (1) and ``sat`` (4), ``big`` with position 0 and ``cat`` with position 1.
    """

    def __init__(self, hidden_size: int, embedding_size: int, vocabulary: int, deviation: float) -> None:
        super().__init__()
        # Embeddings of positions, under the name that checkpoints have.
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

    def forward(self, states: Tensor, batch: Batch, starts: Tensor, ends: Tensor, words: Tensor) -> Tensor:
        """Compute logits of shape (masked, vocabulary).

        Args:
            states: Last hidden states, shape (rows, tokens, width).
            batch: Batch whose ``labels`` (rows, tokens) mark the masked tokens.
            starts: Index of the first token of each masked token's span, shape (rows, tokens).
            ends: Index of the token after the span, shape (rows, tokens).
            words: Embeddings of the vocabulary, shape (vocabulary, embedding).
        """
        # All masked tokens of the batch in one list, (masked, ...): no loop over spans, and nothing is computed for the
        # tokens that are not masked. Both boundaries are picked by index from (rows, tokens, width).
        indices = gather_labeled(torch.arange(starts.numel(), device=starts.device).view(starts.shape), batch)
        rows, columns = indices // starts.shape[1], indices % starts.shape[1]
        starts, ends = starts.flatten()[indices], ends.flatten()[indices]
        before = states[rows, (starts - 1).clamp(min=0)]
        after = states[rows, ends.clamp(max=states.shape[1] - 1)]
        position = self.places((columns - starts).clamp(max=_POSITIONS - 1))
        predicted: Tensor = self.layers(torch.cat([before, after, position.to(before.dtype)], dim=-1))
        return nn.functional.linear(predicted, words, self.bias)


def add_span_boundary(model: Model) -> None:
    """Add the head over boundaries to a masked language model, as its submodule ``span_boundary``."""
    vocabulary, width = model.get_input_embeddings().weight.shape
    deviation = getattr(model.config, "initializer_range", 0.02)
    model.span_boundary = SpanBoundary(model.config.hidden_size, width, vocabulary, deviation)


def run_with_boundaries(model: Model, inputs: Batch, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run a model with its boundary head, which is part of its forward pass.

    Autocast and the reduction of gradients among processes apply only to the forward pass.

    Args:
        model: Model with the submodule ``span_boundary``, which may be in a distributed wrapper.
        inputs: Inputs of the model, with ``labels``.
        starts: See `SpanBoundary.forward`.
        ends: See `SpanBoundary.forward`.

    Returns:
        logits of masked tokens, shape (1, masked, vocabulary); their labels, shape (masked,); their logits from the
        boundaries, shape (masked, vocabulary).
    """
    boundary_logits = []
    unwrapped = unwrap(model)

    def run_boundary_head(module: object, arguments: object, outputs: ModelOutput) -> None:
        embeddings = unwrapped.get_input_embeddings().weight
        boundary_logits.append(unwrapped.span_boundary(outputs["last_hidden_state"], inputs, starts, ends, embeddings))

    # This hook comes before the hook that gathers the masked positions, so it gets the states of all tokens.
    with unwrapped.base_model.register_forward_hook(run_boundary_head):
        outputs, labels = run_at_masked(model, inputs)
    return outputs.logits, labels, boundary_logits[0]
