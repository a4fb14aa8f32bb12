"""Pairs of segments as features and batches, and what a model with two heads says of them: of tokens and of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertkit.modeling.masked_head import masked_scores, masked_totals, run_at_masked, sum_of_losses
from bertkit.tokens.features import IGNORED

if TYPE_CHECKING:
    import torch

_PAIR_LOGITS = ("seq_relationship_logits", "sop_logits")  # BERT's name, ALBERT's name


def count_pairs(batch: Mapping[str, torch.Tensor]) -> tuple[int, int]:
    """Count the hidden tokens and the pairs of a batch."""
    return int((batch["labels"] != IGNORED).sum()), len(batch["pair_labels"])


def sum_pair_losses(model: Any, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the cross-entropies of the hidden tokens of a batch, and those of its pairs."""
    logits, labels, pair_logits = _run(model, batch)
    return sum_of_losses(logits, labels), sum_of_losses(pair_logits, batch["pair_labels"])


def accumulate_pairs(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Sum up what `score_pairs` needs: losses, items and right answers."""
    logits, labels, pair_logits = _run(model, batch)
    gold = batch["pair_labels"]
    pairs = {
        "pair": float(sum_of_losses(pair_logits, gold)),
        "pairs": float(len(gold)),
        "pairs_found": float((pair_logits.argmax(-1) == gold).sum()),
    }
    return {**masked_totals(logits, labels), **pairs}


def score_pairs(totals: Mapping[str, float]) -> dict[str, float]:
    """Give the loss, the scores of hidden tokens, and the share of pairs that are told rightly."""
    loss = totals["mlm"] / totals["masked"] + totals["pair"] / totals["pairs"]
    return {"loss": loss, **masked_scores(totals), "pair_accuracy": totals["pairs_found"] / totals["pairs"]}


def _run(model: Any, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give logits (masked, vocabulary) and labels (masked,) of hidden tokens, and logits (rows, 2) of pairs."""
    outputs, labels = run_at_masked(model, {name: values for name, values in batch.items() if name != "pair_labels"})
    pair_logits = next(outputs[name] for name in _PAIR_LOGITS if name in outputs)
    return outputs["prediction_logits"][0], labels, pair_logits
