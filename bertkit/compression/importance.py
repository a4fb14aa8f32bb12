"""Importance of heads and neurons, by the gradient of a mask, which one backward pass gives.

It is a Taylor score of the first order. The loss changes by the gradient of the loss with respect to a mask of
ones if the mask becomes zero, as far as it is linear (Molchanov et al. 2017, section 2.2). The absolute value is taken
row by row, so that rows that need a unit and rows that it hurts do not cancel out (Michel et al. 2019, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.forward import sorted_batches
from bertkit.modeling.students.units import attention_outputs_of, feed_forwards_of, unit_masks
from bertkit.progress import stage
from bertkit.tokens.feature_cache import lengths_of
from bertkit.tokens.features import Batch, Features, count_items


@dataclass(frozen=True)
class UnitScores:
    """The importance of the units of each layer, per row: (layers, units)."""

    heads: np.ndarray
    neurons: np.ndarray


def score_units(checkpoint: Checkpoint, features: Features, *, most: int | None = None) -> UnitScores:
    """Compute the gradient scores of all heads and neurons of a model on rows with labels.

    The weights need no gradients, and the model is left as it is.

    Args:
        checkpoint: its model is one of transformers', not loaded for inference only.
        features: of rows with gold answers.
        most: padded tokens per batch.

    Raises:
        UsageError: the model computes no loss on these rows, or its encoder is frozen under its head.
        ModelError: its layers are not known.
    """
    model, collate = checkpoint.model, checkpoint.task.collator(checkpoint.setup)
    if not any(parameter.requires_grad for parameter in model.base_model.parameters()):
        message = "the encoder of this model is frozen under its head, so the importance of its units is unknown"
        raise UsageError(message, "name a run that has trained its encoder")
    attentions = attention_outputs_of(model)
    narrow = [feed_forward.narrow for feed_forward in feed_forwards_of(model)]
    units = [*[model.config.num_attention_heads] * len(attentions), *(layer.in_features for layer in narrow)]
    layers = [*attentions, *narrow]
    totals = [np.zeros(count) for count in units]
    # no dropout is drawn, though a head over vectors computes a loss in training mode only
    model.eval()
    model.training = True
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    with stage("measuring importance", len(features)) as tick, unit_masks(layers, units) as masks:
        for numbers in sorted_batches(lengths_of(features).tolist(), most):
            batch = collate([features[number] for number in numbers])
            outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
            loss = loss_of(outputs)
            (loss * count_items(batch)).backward()
            for layer, total in zip(layers, totals, strict=True):
                # a mask has one number per row and unit, (rows, 1, units); layers with shared weights have several
                gradients = [mask.grad for mask in masks[layer] if mask.grad is not None]
                if gradients:
                    summed = torch.stack([gradient.flatten(1) for gradient in gradients]).sum(dim=0)
                    total += summed.abs().sum(dim=0).cpu().double().numpy()
                masks[layer].clear()
            tick(len(numbers))
    for parameter in wanted:
        parameter.requires_grad_(True)
    count = len(attentions)
    return UnitScores(*(np.stack(part) / len(features) for part in (totals[:count], totals[count:])))


def loss_of(outputs: Batch) -> Any:
    """Return the loss that a model has computed.

    Raises:
        UsageError: there is none.
    """
    loss = outputs.get("loss")
    if loss is None:
        what = "the model computes no loss on these rows, so importance cannot be measured"
        raise UsageError(what, "name the layers to keep: --layers 0,1,2, or prune the vocabulary alone")
    return loss


def choose_units(scores: np.ndarray, keep: int, together: int = 1) -> list[list[int]]:
    """Return the numbers of the most important units of each layer, in order; of equal ones, the first.

    >>> choose_units(np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 5.0]]), 2)
    [[1, 2], [0, 2]]

    Args:
        scores: (layers, units).
        keep: how many of each layer.
        together: how many neighbors stay or go together.
    """
    groups = scores.reshape(len(scores), -1, together).sum(axis=-1)
    best = np.sort(np.argsort(-groups, axis=1, kind="stable")[:, : keep // together], axis=1)
    units: list[list[int]] = (best[..., None] * together + np.arange(together)).reshape(len(scores), keep).tolist()
    return units
