"""Masked spans, predicted from their context and from their boundaries (SpanBERT: Joshi et al. 2020, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from bertkit.modeling.info import LoadingInfo, Model, get_loading_info
from bertkit.modeling.masked_head import (
    compute_masked_scores,
    read_scalars,
    run_at_masked,
    sum_cross_entropies,
    sum_masked_losses,
)
from bertkit.pretraining.masking import Random, choose_spans, corrupt
from bertkit.pretraining.objectives import (
    PretrainContext,
    Sums,
    Totals,
    get_masking_rate,
    get_replacement_fractions,
    mlm,
)
from bertkit.pretraining.packing import Block, join_block
from bertkit.recipe.records import read_option
from bertkit.tokens.features import IGNORE_INDEX, Batch, Collator, Feature, Tensor

OPTIONS: Mapping[str, Any] = {
    "mask_rate": mlm.OPTIONS["mask_rate"],
    "last_mask_rate": mlm.OPTIONS["last_mask_rate"],
    "mask_random_keep": mlm.OPTIONS["mask_random_keep"],
    "boundary": True,
}
LOSS_TERMS: Mapping[str, float] = {"mlm": 1.0, "sbo": 1.0}
BEST_METRIC = mlm.BEST_METRIC

check = mlm.check
baselines, auxiliary_checkpoints = mlm.baselines, mlm.auxiliary_checkpoints

_EDGES = ("span_starts", "span_ends")

examples = mlm.examples


def load_model(context: PretrainContext) -> Model:
    """Load the checkpoint, or build a new model, with heads for masked tokens and for span boundaries."""
    model = mlm.load_model(context)
    if read_option(OPTIONS, context.recipe, "boundary"):
        from bertkit.modeling.heads.pretraining import add_span_boundary

        add_span_boundary(model)
        # A checkpoint never has this head, so the report lists its weights as new.
        if context.model_folder is not None:
            new_weights = get_loading_info(model).new_weights
            model.loading_info = LoadingInfo((*new_weights, "span_boundary"))
    return model


def feature(example: Block, progress: float | None, random: Random, context: PretrainContext) -> Feature:
    """Mask spans of a block; with boundaries, add first and last + 1 token of the span to each masked position."""
    text = join_block(example, context.template)
    rate = get_masking_rate(OPTIONS, context, progress)
    is_chosen, spans = choose_spans(text.maskable, text.word_starts, rate, random)
    mask_token_id = context.tokenizer.mask_token_id
    fractions = get_replacement_fractions(OPTIONS, context, progress)
    masked_text: Feature = {
        "input_ids": corrupt(text.tokens, is_chosen, random, mask_token_id, context.ordinary_tokens, spans, fractions),
        "labels": np.where(is_chosen, text.tokens, IGNORE_INDEX),
        "segment_ids": text.segment_ids,
    }
    if read_option(OPTIONS, context.recipe, "boundary"):
        # Repeat the edge of each span for the tokens of the span; spans are in the order of positions.
        for name, edge in zip(_EDGES, spans.T, strict=True):
            masked_text[name] = np.zeros(len(is_chosen), dtype=np.int64)
            masked_text[name][is_chosen] = np.repeat(edge, spans[:, 1] - spans[:, 0])
    return masked_text


def collator(context: PretrainContext) -> Collator:
    """Build the collator of blocks, with ``span_starts`` and ``span_ends`` if features have boundaries."""
    return mlm.collator(context, dict.fromkeys(_EDGES, 0))


def count(batch: Batch) -> dict[str, int]:
    """Count the masked tokens; with boundaries, both terms predict them."""
    tokens = mlm.count(batch)["mlm"]
    return {"mlm": tokens, "sbo": tokens} if _EDGES[0] in batch else {"mlm": tokens}


def sum_losses(model: Model, batch: Batch) -> Sums:
    """Sum the cross-entropies of the masked tokens (``mlm``) and of their predictions from boundaries (``sbo``)."""
    logits, labels, boundary_logits = _run_heads(model, batch)
    sums = {"mlm": sum_cross_entropies(logits, labels)}
    return sums if boundary_logits is None else {**sums, "sbo": sum_cross_entropies(boundary_logits, labels)}


def accumulate(model: Model, batch: Batch) -> Totals:
    """Sum the losses and the correct predictions of a batch."""
    logits, labels, boundary_logits = _run_heads(model, batch)
    sums = sum_masked_losses(logits, labels)
    boundary = {} if boundary_logits is None else {"sbo": sum_cross_entropies(boundary_logits, labels)}
    return read_scalars(sums | boundary)


def score(totals: Totals) -> dict[str, float]:
    """Compute the loss, the perplexity and the accuracy of masked tokens."""
    return {"loss": (totals["mlm"] + totals.get("sbo", 0.0)) / totals["masked"], **compute_masked_scores(totals)}


def encoder(model: Model, context: PretrainContext) -> Model:
    """Return the model without the boundary head: a plain checkpoint for masked language modeling."""
    # A shallow copy shares the weights, and the training model keeps its head.
    encoder_only = copy(model)
    encoder_only._modules = {name: module for name, module in model._modules.items() if name != "span_boundary"}
    return encoder_only


def _run_heads(model: Model, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the logits of masked tokens, their labels, and their logits from boundaries (None without)."""
    inputs = {name: values for name, values in batch.items() if name not in _EDGES}
    if _EDGES[0] not in batch:
        outputs, labels = run_at_masked(model, inputs, rounded=True)
        return outputs.logits, labels, None
    from bertkit.modeling.heads.pretraining import run_with_boundaries

    return run_with_boundaries(model, inputs, *(batch[name] for name in _EDGES))
