"""Replaced token detection: find the tokens that a small generator has replaced (ELECTRA: Clark et al. 2020).

The generator predicts masked tokens. Tokens drawn from its predictions fill the masked positions, and the discriminator
classifies every token as original or replaced. The discriminator is the result of pretraining.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bertkit.errors import ModelError, RecipeError
from bertkit.hardware.tensors import derive, select
from bertkit.metrics.intervals import f1_from_jaccard
from bertkit.modeling.architectures import get_architecture
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.info import LoadingInfo, Model, get_loading_info
from bertkit.modeling.load import load_for_pretraining
from bertkit.modeling.masked_head import (
    LABEL_POSITIONS,
    compute_masked_scores,
    read_scalars,
    sum_cross_entropies,
    sum_masked_losses,
)
from bertkit.pretraining.masking import Random
from bertkit.pretraining.objectives import PretrainContext, Sums, Totals, mlm
from bertkit.pretraining.packing import Block, join_block
from bertkit.progress import log
from bertkit.recipe.records import Option, read_option
from bertkit.storage.hub.models import check_model
from bertkit.tokens.features import IGNORE_INDEX, Batch, Collator, Feature, Features

OPTIONS: Mapping[str, object] = {
    **{name: mlm.OPTIONS[name] for name in ("mask_rate", "last_mask_rate", "whole_words")},
    "generator_size": Option(0.25, minimum=0.125, maximum=1.0),
}
LOSS_TERMS: Mapping[str, float] = {"mlm": 1.0, "rtd": 50.0}
"""The weights of the paper (section 3.1): the discriminator's loss is far smaller than the generator's."""
BEST_METRIC = "perplexity"
"""Score of the generator, because a better generator makes the discriminator's task harder and its scores lower."""

_GENERATOR = "generator"  # folder of the generator, in the discriminator's folder
_PADDING = -1.0  # marks padding in random numbers from [0, 1)
_SHARED_KEYS = ("vocab_size", "embedding_size", "max_position_embeddings", "type_vocab_size")

examples = mlm.examples


def check(context: PretrainContext) -> None:
    """Check that the model is an ELECTRA."""
    if not get_architecture(context.config).has_discriminator:
        remedy = "use --size electra-small, electra-base or electra-large"
        if context.model_folder is not None:
            remedy = "name an ELECTRA, or use the objective mlm"
        raise RecipeError(f"rtd needs an ELECTRA, not a model of type {context.config.model_type}", remedy)


def load_model(context: PretrainContext) -> Model:
    """Load or build the discriminator and the generator; if the checkpoint has no generator, a new one is built.

    Raises:
        RecipeError: If the generator's width cannot be divided among attention heads.
        ModelError: If the generator cannot share embeddings with the discriminator, or is damaged.
    """
    config, folder = context.config, context.model_folder
    from transformers import ElectraForMaskedLM, ElectraForPreTraining

    from bertkit.modeling.heads.pretraining import ElectraPair, make_generator_config

    generator_folder = folder / _GENERATOR if folder and (folder / _GENERATOR).is_dir() else None
    if folder and generator_folder is None:
        log.info(f"no {_GENERATOR}/ in the checkpoint: the generator is new")
    if generator_folder:
        check_model(generator_folder)
    size = read_option(OPTIONS, context.recipe, "generator_size")
    small_config = load_config(generator_folder) if generator_folder else make_generator_config(config, size)
    for name in _SHARED_KEYS:
        if getattr(small_config, name) != getattr(config, name):
            message = f"{name} is {getattr(small_config, name)}, but {getattr(config, name)} in the discriminator"
            raise ModelError(message, "use both from one run, or leave the generator out", file=generator_folder)
    discriminator = load_for_pretraining(ElectraForPreTraining, folder, config)
    generator = load_for_pretraining(ElectraForMaskedLM, generator_folder, small_config)
    model = ElectraPair(discriminator, generator)
    new_weights = (name for part in (discriminator, generator) for name in get_loading_info(part).new_weights)
    model.loading_info = LoadingInfo(tuple(new_weights))
    return model


def feature(example: Block, progress: float | None, random: Random, context: PretrainContext) -> Feature:
    """Mask tokens, or whole words, of a block, and draw the random numbers that choose the generator's tokens."""
    text = join_block(example, context.template)
    # All chosen tokens become the mask token (section 2 of the paper). BERT keeps or replaces some of them at random;
    # here, samples of the generator replace all of them.
    is_chosen = mlm.choose_masked(text, progress, random, context)
    return {
        "input_ids": np.where(is_chosen, context.tokenizer.mask_token_id, text.tokens),
        "labels": np.where(is_chosen, text.tokens, IGNORE_INDEX),
        "segment_ids": text.segment_ids,
        # The generator's samples use these random numbers, so a resumed run samples the same tokens.
        "draws": random.random(len(is_chosen), dtype=np.float32),
    }


def collator(context: PretrainContext) -> Collator:
    """Build the collator of blocks; the random numbers at padding are negative."""
    return mlm.collator(context, {"draws": _PADDING})


def count(batch: Batch) -> dict[str, int]:
    """Count the masked tokens, and all tokens, because the discriminator classifies special tokens too."""
    return {"mlm": int((batch["labels"] != IGNORE_INDEX).sum()), "rtd": int((batch["draws"] >= 0).sum())}


def sum_losses(model: Model, batch: Batch) -> Sums:
    """Sum the cross-entropies of the generator and of the discriminator."""
    return _sum_terms(model(**batch), batch)


def _sum_terms(outputs: Batch, batch: Batch) -> Sums:
    from torch.nn import functional

    # False at padding, which an attention mask within documents does not show. Shape: (rows, tokens).
    is_token = derive(batch["draws"], lambda draws: draws >= 0)
    logits, is_replaced, weights = outputs["logits"].float(), outputs["replaced"].float(), None
    if LABEL_POSITIONS in batch:  # With static shapes, padding stays, with the weight 0.
        weights = is_token.float()
    else:
        logits, is_replaced = select(logits, is_token), select(is_replaced, is_token)
    return {
        "mlm": sum_cross_entropies(outputs["masked_logits"], outputs["masked_labels"]),
        "rtd": functional.binary_cross_entropy_with_logits(logits, is_replaced, weight=weights, reduction="sum"),
    }


def accumulate(model: Model, batch: Batch) -> Totals:
    """Sum both losses, the generator's correct predictions, and the discriminator's predictions by outcome."""
    outputs = model(**batch)
    # A sample that equals the original token is not replaced (section 2 of the paper).
    is_token = batch["draws"] >= 0
    is_replaced, is_suspected = outputs["replaced"] & is_token, (outputs["logits"] > 0) & is_token
    return read_scalars(
        {
            **sum_masked_losses(outputs["masked_logits"], outputs["masked_labels"]),
            "rtd": _sum_terms(outputs, batch)["rtd"],
            "tokens": is_token.sum(),
            "replaced": is_replaced.sum(),
            "suspected": is_suspected.sum(),
            "caught": (is_replaced & is_suspected).sum(),
        }
    )


def score(totals: Totals) -> dict[str, float]:
    """Compute the loss, the generator's scores, and precision, recall and F1 of finding replaced tokens."""
    mlm_loss, rtd_loss = totals["mlm"] / totals["masked"], totals["rtd"] / totals["tokens"]
    true_positives = totals["caught"]
    return {
        "loss": LOSS_TERMS["mlm"] * mlm_loss + LOSS_TERMS["rtd"] * rtd_loss,
        **compute_masked_scores(totals),
        "replaced_share": totals["replaced"] / totals["tokens"],
        "precision": true_positives / max(totals["suspected"], 1),
        "recall": true_positives / max(totals["replaced"], 1),
        "f1": 2 * true_positives / max(totals["replaced"] + totals["suspected"], 1),
    }


def baselines(held_out: Features, scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Compute the scores of predicting that every token is replaced."""
    share = scores["replaced_share"]
    return {"every token replaced": {"precision": share, "recall": 1.0, "f1": f1_from_jaccard(share)}}


def encoder(model: Model, context: PretrainContext) -> Model:
    """Return the discriminator: a plain ELECTRA."""
    return model.discriminator


def auxiliary_checkpoints(model: Model, context: PretrainContext) -> dict[str, Model]:
    """Return the generator: an ELECTRA for masked language modeling, which a later run continues with."""
    return {_GENERATOR: model.generator}
