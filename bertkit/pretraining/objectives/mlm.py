"""Masked language modeling: predict the masked tokens (Devlin et al. 2019, section 3.1; Liu et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bertkit.errors import RecipeError
from bertkit.modeling.architectures import first_position, get_architecture
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_for_pretraining
from bertkit.modeling.masked_head import (
    compute_masked_scores,
    read_scalars,
    run_at_masked,
    sum_cross_entropies,
    sum_masked_losses,
)
from bertkit.pretraining.masking import MASK_RANDOM_KEEP, Random, choose_tokens, choose_words, corrupt
from bertkit.pretraining.objectives import (
    PretrainContext,
    Sums,
    Totals,
    get_masking_rate,
    get_replacement_fractions,
    read_fractions,
)
from bertkit.pretraining.packing import (
    NO_PADDING,
    Block,
    Blocks,
    TokenizedText,
    block_collator,
    join_block,
    pack_blocks,
)
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.recipe.records import Option, read_option
from bertkit.tokens.features import IGNORE_INDEX, Batch, Collator, Feature, Features

OPTIONS: Mapping[str, object] = {
    "mask_rate": Option(0.15, minimum=0.01, maximum=0.9),
    "last_mask_rate": Option(None, minimum=0.01, maximum=0.9),
    "whole_words": False,
    "mask_random_keep": Option(MASK_RANDOM_KEEP, read=read_fractions),
}
LOSS_TERMS: Mapping[str, float] = {"mlm": 1.0}
BEST_METRIC = "loss"


def check(context: PretrainContext) -> None:
    """Check that attention can stay within the documents of a block, if the recipe requires it."""
    if context.recipe.training.packing == "documents" and not get_architecture(context.config).separates_documents:
        message = f"a model of type {context.config.model_type} cannot keep documents of a block apart"
        raise RecipeError(message, "add --set training.packing=joined, or none")


def load_model(context: PretrainContext) -> Model:
    """Load the checkpoint, or build a new model, with a masked language modeling head."""
    from transformers import AutoModelForMaskedLM

    return load_for_pretraining(AutoModelForMaskedLM, context.model_folder, context.config)


def examples(corpus: TokenizedCorpus, length: int, context: PretrainContext, epoch: int) -> Blocks:
    """Split the corpus into blocks, which are the same in each epoch."""
    return pack_blocks(corpus, length, context.template.size, context.recipe.training.packing)


def feature(example: Block, progress: float | None, random: Random, context: PretrainContext) -> Feature:
    """Mask tokens, or whole words, of a block."""
    text = join_block(example, context.template)
    return {**mask(text, progress, random, context), "segment_ids": text.segment_ids}


def mask(text: TokenizedText, progress: float | None, random: Random, context: PretrainContext) -> Feature:
    """Mask tokens, or whole words, of a text; return ``input_ids``, and ``labels`` at the masked positions."""
    # All chosen tokens have labels, even if `corrupt` keeps them. In fine-tuning, no token is masked, so the model must
    # compute good hidden states for unmasked tokens too (Devlin et al. 2019, section 3.1).
    is_chosen = choose_masked(text, progress, random, context)
    fractions = get_replacement_fractions(OPTIONS, context, progress)
    mask_token_id = context.tokenizer.mask_token_id
    input_ids = corrupt(text.tokens, is_chosen, random, mask_token_id, context.ordinary_tokens, None, fractions)
    return {"input_ids": input_ids, "labels": np.where(is_chosen, text.tokens, IGNORE_INDEX)}


def choose_masked(text: TokenizedText, progress: float | None, random: Random, context: PretrainContext) -> np.ndarray:
    """Return whether each token of a text is masked. Shape: (tokens,)."""
    rate = get_masking_rate(OPTIONS, context, progress)
    if read_option(OPTIONS, context.recipe, "whole_words"):
        return choose_words(text.maskable, text.word_starts, rate, random)
    return choose_tokens(text.maskable, rate, random)


def collator(context: PretrainContext, extra_padding: Mapping[str, float] = NO_PADDING) -> Collator:
    """Build the collator of blocks; `extra_padding`: other key with a number per token -> number at padding."""
    within_documents = context.recipe.training.packing == "documents"
    return block_collator(
        context.tokenizer, extra_padding, first_position(context.config) if within_documents else None
    )


def count(batch: Batch) -> dict[str, int]:
    """Count the masked tokens."""
    return {"mlm": int((batch["labels"] != IGNORE_INDEX).sum())}


def sum_losses(model: Model, batch: Batch) -> Sums:
    """Sum the cross-entropies of the masked tokens."""
    outputs, labels = run_at_masked(model, batch, rounded=True)
    return {"mlm": sum_cross_entropies(outputs.logits, labels)}


def accumulate(model: Model, batch: Batch) -> Totals:
    """Sum the losses and the correct predictions of a batch."""
    outputs, labels = run_at_masked(model, batch, rounded=True)
    return read_scalars(sum_masked_losses(outputs.logits, labels))


def score(totals: Totals) -> dict[str, float]:
    """Compute the loss, the perplexity and the accuracy of masked tokens."""
    return {"loss": totals["mlm"] / totals["masked"], **compute_masked_scores(totals)}


def baselines(held_out: Features, scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return no baselines, because the baseline by token frequencies is computed for every objective."""
    return {}


def encoder(model: Model, context: PretrainContext) -> Model:
    """Return the model with its heads: a plain checkpoint for pretraining."""
    return model


def auxiliary_checkpoints(model: Model, context: PretrainContext) -> dict[str, Model]:
    """Return no other checkpoints, because the encoder is the complete model."""
    return {}
