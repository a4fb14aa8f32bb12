"""Causal language modeling: predict each token from those before it (Radford et al. 2018, section 3.1).

It is the left-to-right model of BERT's ablation (Devlin et al. 2019, section 5.1). Fine-tuning keeps the direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertkit.errors import RecipeError
from bertkit.modeling.architectures import can_be_causal, make_causal
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_for_pretraining
from bertkit.pretraining.masking import Random
from bertkit.pretraining.objectives import PretrainContext, Sums, Totals, mlm
from bertkit.pretraining.packing import Block, join_block
from bertkit.tokens.features import IGNORE_INDEX, Batch, Collator, Feature, Features, Tensors

OPTIONS: Mapping[str, Any] = {}
LOSS_TERMS: Mapping[str, float] = {"clm": 1.0}
BEST_METRIC = mlm.BEST_METRIC

examples, baselines, accumulate = mlm.examples, mlm.baselines, mlm.accumulate
encoder, auxiliary_checkpoints = mlm.encoder, mlm.auxiliary_checkpoints


def check(context: PretrainContext) -> None:
    """Check that the architecture has a left-to-right version, and check the conditions of `mlm`."""
    mlm.check(context)
    if not can_be_causal(context.config):
        message = f"a model of type {context.config.model_type!r} has no left-to-right version"
        raise RecipeError(message, "use one of type bert, or the objective mlm")


def load_model(context: PretrainContext) -> Model:
    """Load the checkpoint, or build a new model, with causal attention and a head for next tokens."""
    from transformers import AutoModelForCausalLM

    return load_for_pretraining(AutoModelForCausalLM, context.model_folder, make_causal(context.config))


def feature(example: Block, progress: float | None, random: Random, context: PretrainContext) -> Feature:
    """Label each token of a block with the next token of its document; special tokens are not predicted."""
    text = join_block(example, context.template)
    # [CLS] 7 8 [SEP] [CLS] 9 [SEP] has the labels 7 8 - - 9 - -, if - is a token without a label.
    has_next = text.maskable[1:] & (text.segment_ids[1:] == text.segment_ids[:-1])
    labels = np.append(np.where(has_next, text.tokens[1:], IGNORE_INDEX), IGNORE_INDEX)
    return {"input_ids": text.tokens, "labels": labels, "segment_ids": text.segment_ids}


def collator(context: PretrainContext) -> Collator:
    """Build the collator of blocks; in attention masks that separate documents, it also masks later tokens."""
    collate = mlm.collator(context)

    def collate_causal(features: Features) -> Tensors:
        batch = collate(features)
        # A mask of shape (rows, 1, tokens, tokens) replaces the model's causal mask, so it must be causal too. A mask
        # of shape (rows, tokens) does not replace it.
        mask = batch["attention_mask"]
        return {**batch, "attention_mask": mask.tril() if mask.dim() == 4 else mask}

    return collate_causal


def count(batch: Batch) -> dict[str, int]:
    """Count the predicted tokens."""
    return {"clm": mlm.count(batch)["mlm"]}


def sum_losses(model: Model, batch: Batch) -> Sums:
    """Sum the cross-entropies of the next tokens."""
    return {"clm": mlm.sum_losses(model, batch)["mlm"]}


def score(totals: Totals) -> dict[str, float]:
    """Compute the loss, the perplexity and the accuracy of next tokens."""
    scores = mlm.score(totals)
    scores["token_accuracy"] = scores.pop("masked_accuracy")
    return scores
