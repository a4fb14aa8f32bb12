"""The head of a masked language model, computed only where something is masked.

Only one token in seven is masked, and a head over 30,000 tokens costs more than all layers of a small encoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertkit.tokens.features import IGNORED

if TYPE_CHECKING:
    import torch

_LARGEST = 700.0  # of an exponent


def run_at_masked(model: Any, batch: Mapping[str, torch.Tensor]) -> tuple[Any, torch.Tensor]:
    """Run a model whose head works token by token, and let the head see only the tokens that have a label.

    The last hidden states are gathered between encoder and head, so that the head of any architecture will do.

    Args:
        model: one of transformers' models with a head over tokens.
        batch: its arguments, and ``labels`` of shape (rows, tokens), `IGNORED` where there is nothing to predict.

    Returns:
        what the model gives, its logits of shape (1, masked, vocabulary), and the labels of shape (masked,).
    """
    places = batch["labels"] != IGNORED

    def gather(module: Any, inputs: Any, outputs: Any) -> Any:
        outputs["last_hidden_state"] = outputs["last_hidden_state"][places][None]
        return outputs

    hook = getattr(model, "module", model).base_model.register_forward_hook(gather)
    try:
        outputs = model(**{name: values for name, values in batch.items() if name != "labels"})
    finally:
        hook.remove()
    return outputs, batch["labels"][places]


def sum_of_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Give the sum of the cross-entropies in nats, 0 of no labels at all.

    >>> import torch
    >>> logits = torch.tensor([[1, 0.5, 4, 2, 0, 1.5]])  # the cat sat on mat dog
    >>> round(sum_of_losses(logits, torch.tensor([2])).item(), 4)
    0.2744
    """
    from torch.nn import functional

    return functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), reduction="sum")


def masked_totals(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Sum up the losses (``mlm``), the hidden tokens (``masked``) and those that are found (``found``)."""
    found = int((logits.flatten(0, -2).argmax(-1) == labels).sum())
    return {"mlm": float(sum_of_losses(logits, labels)), "masked": float(len(labels)), "found": float(found)}


def masked_scores(totals: Mapping[str, float]) -> dict[str, float]:
    """Give the perplexity of hidden tokens, and the share of them that is found."""
    mean = totals["mlm"] / totals["masked"]
    return {"perplexity": math.exp(min(mean, _LARGEST)), "masked_accuracy": totals["found"] / totals["masked"]}
