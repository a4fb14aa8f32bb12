"""Selection of the layers, heads and neurons of a model to keep, by measured importance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bertkit.compression.target_shape import PruningTarget
from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo
from bertkit.evaluation.forward import sorted_batches
from bertkit.modeling.architectures import get_architecture
from bertkit.modeling.info import Model, get_loading_info
from bertkit.progress import stage
from bertkit.tokens.feature_cache import get_lengths
from bertkit.tokens.features import Features, count_items


def choose_layers(count: int, keep: int, measure: Callable[[list[int]], float], *, fixed: int = 0) -> list[int]:
    """Return the indices of the layers to keep.

    Each step measures the loss without each remaining layer, and removes the layer whose removal gives the lowest loss
    (in a tie, the last such layer). Layers depend on each other, so each step measures all remaining layers again.

    >>> choose_layers(4, 2, lambda layers: -sum(layers))
    [2, 3]

    Args:
        count: Number of layers of the model.
        keep: Number of layers to keep.
        measure: Function that returns the loss with only the given layers.
        fixed: Number of first layers that are always kept.
    """
    layers = list(range(count))
    # From 12 to 6 layers, the steps measure 12 + 11 + ... + 7 candidates.
    total = sum(remaining - fixed for remaining in range(keep + 1, count + 1))
    with stage("choosing layers", total) as advance:
        while len(layers) > keep:
            losses = []
            for layer in layers[fixed:]:
                losses.append((measure([index for index in layers if index != layer]), -layer))
                advance(1)
            layers.remove(-min(losses)[1])  # Negative indices sort the last layer first in a tie.
    return layers


def loss_with_layers(checkpoint: Checkpoint, features: Features) -> Callable[[list[int]], float]:
    """Return a function that computes the mean loss of a model on features, with only the given layers.

    The function raises a UsageError if the model computes no loss.
    """
    import torch

    from bertkit.compression.importance import get_loss
    from bertkit.modeling.students.narrow import truncate_layers

    model, collate = checkpoint.model, checkpoint.task.collator(checkpoint.context)
    model.eval()
    model.training = True  # A head over vectors computes a loss only in training mode.
    batches = sorted_batches(get_lengths(features).tolist())

    def measure(layers: list[int]) -> float:
        # The loss of a batch is a mean over rows or labeled tokens, so weight batches by the number of these items.
        total, items = 0.0, 0
        with truncate_layers(model, layers), torch.inference_mode():
            for indices in batches:
                batch = collate([features[index] for index in indices])
                outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
                total, items = total + float(get_loss(outputs)) * count_items(batch), items + count_items(batch)
        return total / max(items, 1)

    return measure


@dataclass(frozen=True)
class PruningPlan:
    """Indices of the units of a model to keep, or None to keep all."""

    layers: list[int] | None = None
    heads: list[list[int]] | None = None
    """Indices of the heads to keep, for each layer that is kept."""
    neurons: list[list[int]] | None = None
    """Indices of the neurons to keep, for each layer that is kept."""


def load_to_measure(info: CheckpointInfo, checkpoint: Checkpoint) -> Checkpoint:
    """Load a checkpoint for training, so that it computes the loss that it was trained with.

    Raises:
        ModelError: If models of the task family are always loaded with a new head for training.
    """
    context = replace(checkpoint.context, inference=False)
    model = info.task.load_model(info.folder, context, new_head=True)
    if get_loading_info(model).head == "new":
        message = f"models of the task family {info.recipe.task} start with a new head, so importance is unknown"
        raise ModelError(message, "name the layers to keep, or prune only the vocabulary", file=info.folder)
    return Checkpoint(model.to(checkpoint.machine.device), info.task, context, checkpoint.machine)


def plan_pruning(checkpoint: Checkpoint, features: Features, target: PruningTarget) -> PruningPlan:
    """Choose the units to keep by their importance on some rows; this changes the model.

    Args:
        checkpoint: Result of `load_to_measure`.
        features: Features of rows with gold answers.
        target: Requested number of layers, heads and neurons.

    Raises:
        UsageError: If the model computes no loss.
        ModelError: If the model's layers cannot be found.
    """
    from bertkit.compression.importance import choose_units, score_units
    from bertkit.modeling.students.narrow import count_key_value_heads, keep_layers

    model = checkpoint.model
    config = model.config

    # 1. Choose and remove layers first, because the importance of heads depends on the layers that remain.
    layers = list(target.layers) if isinstance(target.layers, tuple) else None
    if isinstance(target.layers, int):
        fixed = int(get_architecture(config).first_layer_differs)
        measure = loss_with_layers(checkpoint, features)
        layers = choose_layers(config.num_hidden_layers, target.layers, measure, fixed=fixed)
    if layers is not None:
        keep_layers(model, layers)
    if target.heads is None and target.intermediate is None:
        return PruningPlan(layers)

    # 2. Score the heads and neurons of the remaining layers in one pass. Query heads that share keys and values are
    #    kept or removed together.
    scores = score_units(checkpoint, features)
    group_size = config.num_attention_heads // count_key_value_heads(config)
    return PruningPlan(
        layers,
        None if target.heads is None else choose_units(scores.heads, target.heads, group_size),
        None if target.intermediate is None else choose_units(scores.neurons, target.intermediate),
    )


def apply_plan(model: Model, plan: PruningPlan) -> None:
    """Remove from a model the units that a plan does not keep."""
    from bertkit.modeling.students.narrow import keep_heads, keep_layers, keep_neurons

    if plan.layers is not None:
        keep_layers(model, plan.layers)
    if plan.heads is not None:
        keep_heads(model, plan.heads)
    if plan.neurons is not None:
        keep_neurons(model, plan.neurons)
