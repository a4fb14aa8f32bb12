"""Importance of heads and neurons, from the gradients of masks in one backward pass.

Each unit is multiplied by a mask of 1. If the mask became 0, which removes the unit, the loss would change by about the
negative gradient of the loss with respect to the mask: a first-order Taylor expansion (Molchanov et al. 2017, section
2.2). The absolute value is taken row by row. Otherwise, rows in which a unit reduces the loss and rows in which it
increases the loss would cancel out (Michel et al. 2019, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.evaluation.forward import sorted_batches
from bertkit.modeling.students.units import find_attention_outputs, find_feed_forwards, mask_units
from bertkit.progress import stage
from bertkit.tokens.feature_cache import get_lengths
from bertkit.tokens.features import Batch, Features, count_items


@dataclass(frozen=True)
class UnitScores:
    """Importance of the units of each layer, as a mean over rows. Shape of both: (layers, units)."""

    heads: np.ndarray
    neurons: np.ndarray


def score_units(checkpoint: Checkpoint, features: Features) -> UnitScores:
    """Compute the gradient scores of all heads and neurons of a model on rows with labels.

    The weights need no gradients, and the model is not changed.

    Args:
        checkpoint: Checkpoint with a model of transformers that was loaded for training.
        features: Features of rows with gold answers.

    Raises:
        UsageError: If the model computes no loss on these rows, or its encoder is frozen.
        ModelError: If the model's layers cannot be found.
    """
    # 1. Find the linear layers whose inputs are the units: the output layer of attention reads the concatenated heads,
    #    and the second layer of a feed-forward network reads its neurons.
    model, collate = checkpoint.model, checkpoint.task.collator(checkpoint.context)
    if not any(parameter.requires_grad for parameter in model.base_model.parameters()):
        message = "the encoder of this model is frozen under its head, so the importance of its units is unknown"
        raise UsageError(message, "name a run that trained its encoder")
    attentions = find_attention_outputs(model)
    down_layers = [feed_forward.narrow for feed_forward in find_feed_forwards(model)]
    units = [*[model.config.num_attention_heads] * len(attentions), *(layer.in_features for layer in down_layers)]
    layers = [*attentions, *down_layers]
    totals = [np.zeros(count) for count in units]

    # 2. Prepare the model. Submodules stay in evaluation mode, without dropout. The model itself is in training mode,
    #    because otherwise, a head over vectors computes no loss. Without gradients of weights, memory is saved.
    model.eval()
    model.training = True
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)

    # 3. Sum the absolute gradients of the masks over rows, batch by batch.
    with stage("measuring importance", len(features)) as advance, mask_units(layers, units) as masks:
        for indices in sorted_batches(get_lengths(features).tolist()):
            batch = collate([features[index] for index in indices])
            outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
            loss = get_loss(outputs)
            # The loss is a mean over the batch. Use the sum, so that a row's gradients do not depend on the batch size.
            (loss * count_items(batch)).backward()
            for layer, total in zip(layers, totals, strict=True):
                # A mask has a value per row and unit, shape (rows, 1, units). A shared layer has a mask per use.
                gradients = [mask.grad for mask in masks[layer] if mask.grad is not None]
                if gradients:
                    summed = torch.stack([gradient.flatten(1) for gradient in gradients]).sum(dim=0)
                    total += summed.abs().sum(dim=0).cpu().double().numpy()
                masks[layer].clear()
            advance(len(indices))
    for parameter in trainable:
        parameter.requires_grad_(True)
    count = len(attentions)
    return UnitScores(*(np.stack(part) / len(features) for part in (totals[:count], totals[count:])))


def get_loss(outputs: Batch) -> Any:
    """Return the loss in the outputs of a model.

    Raises:
        UsageError: If the outputs have no loss.
    """
    loss = outputs.get("loss")
    if loss is None:
        message = "the model computes no loss on these rows, so importance cannot be measured"
        raise UsageError(message, "name the layers to keep: --layers 0,1,2, or prune only the vocabulary")
    return loss


def choose_units(scores: np.ndarray, keep: int, group_size: int = 1) -> list[list[int]]:
    """Return the ascending indices of the most important units of each layer; in a tie, the first unit is kept.

    >>> choose_units(np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 5.0]]), 2)
    [[1, 2], [0, 2]]
    >>> choose_units(np.array([[1.0, 3.0, 2.0, 5.0]]), keep=2, group_size=2)  # the groups have the scores 4 and 7
    [[2, 3]]

    Args:
        scores: Importance of units, (layers, units).
        keep: Number of units per layer.
        group_size: Number of consecutive units that are kept or removed together.
    """
    sums = scores.reshape(len(scores), -1, group_size).sum(axis=-1)
    groups = np.sort(np.argsort(-sums, axis=1, kind="stable")[:, : keep // group_size], axis=1)
    units = groups[..., None] * group_size + np.arange(group_size)
    return units.reshape(len(scores), keep).tolist()
