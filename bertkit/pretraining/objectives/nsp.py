"""Masked tokens and the next sentence: does the second segment follow the first? (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.errors import RecipeError
from bertkit.metrics.baselines import score_by_length
from bertkit.modeling.architectures import get_architecture, list_types
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_for_pretraining
from bertkit.modeling.masked_head import count_pairs, score_pairs, sum_pair_losses, sum_pair_scores
from bertkit.pretraining.masking import Random
from bertkit.pretraining.objectives import PretrainContext, Sums, mlm
from bertkit.pretraining.sentence_pairs import Pair, Pairs, PairType, build_pairs, join_pair, pair_collator
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.tokens.features import Batch, Collator, Feature, Features

OPTIONS: Mapping[str, Any] = mlm.OPTIONS
LOSS_TERMS: Mapping[str, float] = {"mlm": 1.0, "nsp": 1.0}
BEST_METRIC = mlm.BEST_METRIC

accumulate, score = sum_pair_scores, score_pairs
encoder, auxiliary_checkpoints = mlm.encoder, mlm.auxiliary_checkpoints


def check(context: PretrainContext) -> None:
    """Check that the architecture has a head for pairs of segments."""
    if not get_architecture(context.config).has_pair_head:
        message = f"a model of type {context.config.model_type!r} has no head over pairs of segments"
        raise RecipeError(message, f"use one of type {' or '.join(list_types('has_pair_head'))}, or the objective mlm")


def load_model(context: PretrainContext) -> Model:
    """Load the checkpoint, or build a new model, with heads for masked tokens and for pairs of segments."""
    from transformers import AutoModelForPreTraining

    return load_for_pretraining(AutoModelForPreTraining, context.model_folder, context.config)


def examples(corpus: TokenizedCorpus, length: int, context: PretrainContext, epoch: int) -> Pairs:
    """Pair the segments of the corpus, differently in each epoch; half of the second segments are random."""
    return pair_segments(corpus, length, context, epoch, "next")


def pair_segments(
    corpus: TokenizedCorpus, length: int, context: PretrainContext, epoch: int, pair_type: PairType
) -> Pairs:
    """Pair the segments of the corpus; the pairs repeat after ``training.dupe_factor`` epochs, if it is set."""
    # Pairs depend only on the seed and this version, so all processes and resumed runs build the same pairs.
    training = context.recipe.training
    version = training.get_example_version(epoch)
    return build_pairs(corpus, length, context.pair_template.size, pair_type, training.seed, version)


def feature(example: Pair, progress: float | None, random: Random, context: PretrainContext) -> Feature:
    """Mask tokens, or whole words, of a pair."""
    text = join_pair(example, context.pair_template)
    masked_text = mlm.mask(text, progress, random, context)
    return {**masked_text, "token_type_ids": text.segment_ids, "pair_labels": example.label}


def collator(context: PretrainContext) -> Collator:
    """Build the collator of pairs."""
    return pair_collator(context.tokenizer)


def count(batch: Batch) -> dict[str, int]:
    """Count the masked tokens and the pairs."""
    return dict(zip(LOSS_TERMS, count_pairs(batch), strict=True))


def sum_losses(model: Model, batch: Batch) -> Sums:
    """Sum the cross-entropies of the masked tokens and of the pairs."""
    return dict(zip(LOSS_TERMS, sum_pair_losses(model, batch), strict=True))


def baselines(held_out: Features, scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Compute the accuracies of the more frequent label and of predictions by segment lengths."""
    segment_ids = [feature["token_type_ids"] for feature in held_out]
    lengths = [(len(ids) - int(ids.sum()), int(ids.sum())) for ids in segment_ids]
    labels = [feature["pair_labels"] for feature in held_out]
    share = sum(labels) / len(labels)
    accuracies = {"more frequent label": max(share, 1 - share), "segment lengths": score_by_length(lengths, labels)}
    return {name: {"pair_accuracy": accuracy} for name, accuracy in accuracies.items() if accuracy is not None}
