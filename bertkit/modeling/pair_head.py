"""Losses and scores of a model with two heads: over masked tokens, and over pairs of segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bertkit.modeling.masked_head import masked_scores, masked_totals, run_at_masked, sum_of_losses
from bertkit.tokens.features import IGNORED

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_PAIR_LOGITS = ("seq_relationship_logits", "sop_logits")  # in the outputs of BERT, of ALBERT


def count_pairs(batch: Mapping[str, torch.Tensor]) -> tuple[int, int]:
    """Count the masked tokens and the pairs of a batch."""
    return int((batch["labels"] != IGNORED).sum()), len(batch["pair_labels"])


def sum_pair_losses(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the cross-entropies of a batch's masked tokens, and those of its pairs."""
    logits, labels, pair_logits = _run(model, batch)
    return sum_of_losses(logits, labels), sum_of_losses(pair_logits, batch["pair_labels"])


def accumulate_pairs(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Sum up what `score_pairs` needs: losses, counts and correct predictions."""
    logits, labels, pair_logits = _run(model, batch)
    gold = batch["pair_labels"]
    pairs = {
        "pair": float(sum_of_losses(pair_logits, gold)),
        "pairs": float(len(gold)),
        "pairs_found": float((pair_logits.argmax(-1) == gold).sum()),
    }
    return {**masked_totals(logits, labels), **pairs}


def score_pairs(totals: Mapping[str, float]) -> dict[str, float]:
    """Compute the loss, the scores of masked tokens, and the accuracy over pairs."""
    loss = totals["mlm"] / totals["masked"] + totals["pair"] / totals["pairs"]
    return {"loss": loss, **masked_scores(totals), "pair_accuracy": totals["pairs_found"] / totals["pairs"]}


def _run(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits (masked, vocabulary) and labels (masked,) of masked tokens, and logits (rows, 2) of pairs."""
    outputs, labels = run_at_masked(model, {name: values for name, values in batch.items() if name != "pair_labels"})
    pair_logits = next(outputs[name] for name in _PAIR_LOGITS if name in outputs)
    return outputs["prediction_logits"][0], labels, pair_logits
