"""The head of a masked language model, computed at masked positions only.

One token in seven is masked, and a head over a vocabulary of 30,000 costs more than all layers of a small encoder. A
second head may be over pairs of segments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertkit.hardware.host import where
from bertkit.modeling.info import Model
from bertkit.tokens.features import IGNORED, Batch

if TYPE_CHECKING:
    import torch

_MAX_EXPONENT = 700.0  # exp of more is no float
_PAIR_LOGITS = ("seq_relationship_logits", "sop_logits")  # in the outputs of BERT, of ALBERT


def run_at_masked(model: Model, batch: Batch) -> tuple[Any, torch.Tensor]:
    """Run a model whose head computes each token by itself, with the head at the labeled tokens only.

    Args:
        model: one of transformers' models with a head over tokens.
        batch: its arguments, and ``labels`` of shape (rows, tokens), `IGNORED` where there is nothing to predict.

    Returns:
        the model's outputs with logits of shape (1, masked, vocabulary), and the labels of shape (masked,).
    """
    masked = where(batch["labels"], lambda labels: labels != IGNORED)

    # A hook between encoder and head turns (rows, tokens, width) into (1, masked, width), a batch of one long row. So
    # the head of any architecture is computed at masked positions only, and needs no code of its own here.
    def gather(module: Any, inputs: Any, outputs: Any) -> Any:
        outputs["last_hidden_state"] = outputs["last_hidden_state"][masked][None]
        return outputs

    hook = getattr(model, "module", model).base_model.register_forward_hook(gather)
    try:
        outputs = model(**{name: values for name, values in batch.items() if name != "labels"})
    finally:
        hook.remove()
    return outputs, batch["labels"][masked]


def sum_of_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute the sum of the cross-entropies in nats; 0 where there are no labels.

    >>> import torch
    >>> logits = torch.tensor([[1, 0.5, 4, 2, 0, 1.5]])  # the cat sat on mat dog
    >>> round(sum_of_losses(logits, torch.tensor([2])).item(), 4)
    0.2744
    """
    from torch.nn import functional

    return functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), reduction="sum")


def masked_totals(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Sum up the losses (``mlm``), the masked tokens (``masked``) and those predicted correctly (``found``)."""
    correct = int((logits.flatten(0, -2).argmax(-1) == labels).sum())
    return {"mlm": float(sum_of_losses(logits, labels)), "masked": float(len(labels)), "found": float(correct)}


def masked_scores(totals: Mapping[str, float]) -> dict[str, float]:
    """Compute the perplexity of masked tokens, and the share of them that is predicted correctly."""
    mean = totals["mlm"] / totals["masked"]
    return {"perplexity": math.exp(min(mean, _MAX_EXPONENT)), "masked_accuracy": totals["found"] / totals["masked"]}


def count_pairs(batch: Batch) -> tuple[int, int]:
    """Count the masked tokens and the pairs of a batch."""
    return int((batch["labels"] != IGNORED).sum()), len(batch["pair_labels"])


def sum_pair_losses(model: Model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the cross-entropies of a batch's masked tokens, and those of its pairs."""
    logits, labels, pair_logits = _run_both(model, batch)
    return sum_of_losses(logits, labels), sum_of_losses(pair_logits, batch["pair_labels"])


def accumulate_pairs(model: Model, batch: Batch) -> dict[str, float]:
    """Sum up what `score_pairs` needs: losses, counts and correct predictions."""
    logits, labels, pair_logits = _run_both(model, batch)
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


def _run_both(model: Model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits (masked, vocabulary) and labels (masked,) of masked tokens, and logits (rows, 2) of pairs."""
    outputs, labels = run_at_masked(model, {name: values for name, values in batch.items() if name != "pair_labels"})
    pair_logits = next(outputs[name] for name in _PAIR_LOGITS if name in outputs)
    return outputs["prediction_logits"][0], labels, pair_logits
