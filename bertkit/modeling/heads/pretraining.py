"""Heads for pretraining: ELECTRA's generator and discriminator, and SpanBERT's span boundary head."""

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
from bertkit.tokens.features import Batch, Tensors

# Number and width of the position embeddings of `SpanBoundary`, as in the authors' code. In a longer span, all further
# tokens have the last position.
_NUM_POSITIONS, _POSITION_WIDTH = 20, 200


class ElectraPair(ElectraPreTrainedModel):  # type: ignore[misc]
    """A discriminator and a generator that share their embeddings (Clark et al. 2020, section 3.2).

    They share the embeddings of tokens, positions and token types, and the layer norm after them, as in the authors'
    code.
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
        **kwargs: Tensor,
    ) -> Tensors:
        """Replace masked tokens by samples of the generator, and detect the replaced tokens with the discriminator.

        No gradient passes from the discriminator into the generator, because sampling has none.

        Args:
            input_ids: Token ids with masks. Shape: (rows, tokens).
            labels: Original ids of masked tokens, else `IGNORE_INDEX`. Shape: (rows, tokens).
            draws: Random numbers from [0, 1), which determine the samples. Shape: (rows, tokens).
            label_positions: `LABEL_POSITIONS` of a batch with static shapes.
            kwargs: Other inputs of both models, such as an attention mask.

        Returns:
            ``logits`` of the discriminator, above 0 for tokens that it classifies as replaced, and ``replaced``,
            whether they are, both (rows, tokens); ``masked_logits`` of the generator (1, masked, vocabulary), and the
            original ids ``masked_labels`` (masked,).
        """
        positions = {} if label_positions is None else {LABEL_POSITIONS: label_positions}
        masked_batch = {"labels": labels, **positions}
        outputs, originals = run_at_masked(self.generator, {"input_ids": input_ids, **masked_batch, **kwargs})
        samples = sample_tokens(outputs.logits.detach()[0], gather_labeled(draws, masked_batch))
        # (masked,) to (rows, tokens). A sample that equals the original token counts as original (section 2).
        replaced = scatter_labeled(samples != originals, masked_batch, torch.zeros_like(labels, dtype=torch.bool))
        logits = self.discriminator(scatter_labeled(samples, masked_batch, input_ids), **kwargs).logits
        return {"logits": logits, "replaced": replaced, "masked_logits": outputs.logits, "masked_labels": originals}


def sample_tokens(logits: Tensor, draws: Tensor) -> Tensor:
    """Sample a token id from the softmax of each row of logits.

    The sample is the first token at which the cumulative probability exceeds the random number. The random numbers are
    part of the batch, so the samples do not depend on how a batch is split into micro-batches.

    In this example, the cumulative probabilities are 0.6, 0.9 and 1:

    >>> sample_tokens(torch.tensor([[0.6, 0.3, 0.1]]).log().repeat(4, 1), torch.tensor([0.0, 0.5, 0.7, 0.95])).tolist()
    [0, 0, 1, 2]

    Args:
        logits: Shape: (masked, vocabulary).
        draws: Random numbers from [0, 1). Shape: (masked,).

    Returns:
        token ids. Shape: (masked,).
    """
    cumulative = logits.float().softmax(-1).cumsum(-1)
    # A binary search per row needs one random number per sample; Gumbel noise needs one per token of the vocabulary.
    # The last sum differs from 1 by rounding, so scale the random numbers by it.
    thresholds = (draws * cumulative[:, -1])[:, None]
    if Device(cumulative.device.type).shapes_may_change:
        samples = torch.searchsorted(cumulative, thresholds, right=True)[:, 0]
    else:  # XLA has no binary search
        samples = (cumulative <= thresholds).sum(dim=-1)
    return samples.clamp(max=logits.shape[-1] - 1)


def make_generator_config(config: Config, size: float) -> Config:
    """Build the config of a generator with all layers of the discriminator, and a fraction of its heads and widths.

    Raises:
        RecipeError: If this fraction of the heads or of a width is not an integer.
    """
    fraction = Fraction(size).limit_denominator(64)
    generator = deepcopy(config)
    for name in ("num_attention_heads", "hidden_size", "intermediate_size"):
        value = getattr(config, name) * fraction
        if value.denominator != 1:
            sizes = f"{config.num_attention_heads} heads and {config.hidden_size} hidden units"
            message = f"options.generator_size {size} of {sizes} is not an integer"
            raise RecipeError(message, f"give a multiple of 1/{config.num_attention_heads}")
        setattr(generator, name, int(value))
    return generator


class SpanBoundary(nn.Module):
    """Head that predicts the tokens of a span from the tokens around the span (Joshi et al. 2020, section 3.2).

    It predicts each token of a masked span from the last hidden states of the tokens before and after the span, and
    from the token's position in the span. Two layers transform these inputs, and the result is multiplied by the word
    embeddings. So the two hidden states learn to represent the complete span.

    In ``[CLS] the big cat sat [SEP]`` with ``big cat`` masked, both tokens have start 2 and end 4. They are predicted
    from the states of ``the`` (1) and ``sat`` (4), ``big`` with position 0 and ``cat`` with position 1.
    """

    def __init__(self, hidden_size: int, embedding_size: int, vocabulary: int, deviation: float) -> None:
        super().__init__()
        # Position embeddings, under their name in checkpoints.
        self.places = nn.Embedding(_NUM_POSITIONS, _POSITION_WIDTH)
        widths = (2 * hidden_size + _POSITION_WIDTH, hidden_size, embedding_size)
        layers = [(nn.Linear(width, size), nn.GELU(), nn.LayerNorm(size)) for width, size in pairwise(widths)]
        self.layers = nn.Sequential(*chain.from_iterable(layers))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=deviation)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, states: Tensor, batch: Batch, starts: Tensor, ends: Tensor, words: Tensor) -> Tensor:
        """Compute the logits of the masked tokens. Shape: (masked, vocabulary).

        Args:
            states: Last hidden states. Shape: (rows, tokens, width).
            batch: Batch whose ``labels`` (rows, tokens) mark the masked tokens.
            starts: Index of the first token of each masked token's span. Shape: (rows, tokens).
            ends: Index of the token after the span. Shape: (rows, tokens).
            words: Word embeddings. Shape: (vocabulary, embedding).
        """
        # Treat the masked tokens of all rows as one list (masked, ...), without a loop over spans.
        indices = gather_labeled(torch.arange(starts.numel(), device=starts.device).view(starts.shape), batch)
        rows, columns = indices // starts.shape[1], indices % starts.shape[1]
        starts, ends = starts.flatten()[indices], ends.flatten()[indices]
        left_states = states[rows, (starts - 1).clamp(min=0)]
        right_states = states[rows, ends.clamp(max=states.shape[1] - 1)]
        position = self.places((columns - starts).clamp(max=_NUM_POSITIONS - 1))
        outputs: Tensor = self.layers(torch.cat([left_states, right_states, position.to(left_states.dtype)], dim=-1))
        return nn.functional.linear(outputs, words, self.bias)


def add_span_boundary(model: Model) -> None:
    """Add a `SpanBoundary` to a masked language model, as its submodule ``span_boundary``."""
    vocabulary, width = model.get_input_embeddings().weight.shape
    deviation = getattr(model.config, "initializer_range", 0.02)
    model.span_boundary = SpanBoundary(model.config.hidden_size, width, vocabulary, deviation)


def run_with_boundaries(model: Model, inputs: Batch, starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run a masked language model and its `SpanBoundary` in one forward pass.

    A separate call of the head would miss autocast, and DDP's reduction of gradients.

    Args:
        model: Model with the submodule ``span_boundary``, which may be in a distributed wrapper.
        inputs: Inputs of the model, with ``labels``.
        starts: See `SpanBoundary.forward`.
        ends: See `SpanBoundary.forward`.

    Returns:
        the logits of masked tokens (1, masked, vocabulary), their labels (masked,), and their logits from the
        boundaries (masked, vocabulary).
    """
    boundary_logits = []
    unwrapped = unwrap(model)

    def run_boundary_head(module: object, arguments: object, outputs: ModelOutput) -> None:
        embeddings = unwrapped.get_input_embeddings().weight
        boundary_logits.append(unwrapped.span_boundary(outputs["last_hidden_state"], inputs, starts, ends, embeddings))

    # Register this hook before the hook that gathers the masked positions, so that it gets the states of all tokens.
    with unwrapped.base_model.register_forward_hook(run_boundary_head):
        outputs, labels = run_at_masked(model, inputs)
    return outputs.logits, labels, boundary_logits[0]
