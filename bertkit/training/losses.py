"""Losses that a model's own head does not offer: class weights and label smoothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.errors import RecipeError
from bertkit.recipe import Training, closest

if TYPE_CHECKING:
    import torch

Loss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Sum over the labels that are not ignored, of logits ``(..., labels)`` and labels."""


def make_loss(training: Training, labels: Sequence[str], gold: Sequence[Any]) -> Loss | None:
    """Make the loss a recipe asks for by `class_weights` or `label_smoothing`; None where it asks for neither.

    Args:
        training: the recipe's training section.
        labels: label names in the order of the model's outputs.
        gold: label names of the training rows (lists of them where a row has several).

    Raises:
        RecipeError: weights for labels that do not exist, or a task without labels.
    """
    if training.class_weights is None and not training.label_smoothing:
        return None
    if not labels:
        raise RecipeError("class_weights and label_smoothing need labels", "drop them for this task")
    import torch
    from torch.nn import functional

    weights = torch.tensor(class_weights(training.class_weights, labels, gold))
    smoothing = training.label_smoothing

    def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        weight = weights.to(logits)
        if wanted.is_floating_point():  # one yes or no a label
            target = wanted * (1 - smoothing) + smoothing / 2
            each = functional.binary_cross_entropy_with_logits(logits, target, weight=weight, reduction="none")
            return each.mean(dim=-1).sum()
        return functional.cross_entropy(
            logits.reshape(-1, len(labels)),
            wanted.reshape(-1),
            weight=weight,
            label_smoothing=smoothing,
            reduction="sum",
        )

    return loss


def class_weights(wanted: str | Mapping[str, float] | None, labels: Sequence[str], gold: Sequence[Any]) -> list[float]:
    """Give each label's weight in the loss; ``balanced`` is rows / (labels * rows of the label), as in scikit-learn.

    >>> class_weights("balanced", ["a", "b"], ["a", "a", "a", "b"])
    [0.6666666666666666, 2.0]
    """
    if wanted is None:
        return [1.0] * len(labels)
    if isinstance(wanted, Mapping):
        for name in wanted:
            if name not in labels:
                raise RecipeError(f"class_weights names no label {name!r}", closest(name, labels))
        return [float(wanted.get(name, 1.0)) for name in labels]
    counts = Counter(name for names in gold for name in (names if isinstance(names, list) else [names]) if name)
    total = sum(counts.values())
    return [total / (len(labels) * counts[name]) if counts[name] else 1.0 for name in labels]
