"""Select the layers, heads and neurons of a model to keep, by measured importance."""

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

    Each step measures the loss without each remaining layer, and removes the layer without which the loss is lowest
    (the last one in a tie). Layers depend on each other, so the remaining layers are measured again.

    >>> choose_layers(4, 2, lambda layers: -sum(layers))
    [2, 3]

    Args:
        count: Number of layers of the model.
        keep: Number of layers to keep.
        measure: Function that returns the loss with only some layers.
        fixed: Number of first layers that always stay.
    """
    layers = list(range(count))
    total = sum(remaining - fixed for remaining in range(keep + 1, count + 1))
    with stage("choosing layers", total) as tick:
        while len(layers) > keep:
            losses = []
            for layer in layers[fixed:]:
                losses.append((measure([kept_layer for kept_layer in layers if kept_layer != layer]), -layer))
                tick(1)
            layers.remove(-min(losses)[1])
    return layers


def loss_with_layers(checkpoint: Checkpoint, features: Features) -> Callable[[list[int]], float]:
    """Return a function that computes the mean loss of a model on features with only some of its layers.

    The function raises a UsageError if the model computes no loss.
    """
    import torch

    from bertkit.compression.importance import loss_of
    from bertkit.modeling.students.narrow import truncate_layers

    model, collate = checkpoint.model, checkpoint.task.collator(checkpoint.context)
    model.eval()
    model.training = True  # A head over vectors computes a loss only in training mode.
    batches = sorted_batches(get_lengths(features).tolist())

    def measure(layers: list[int]) -> float:
        total, items = 0.0, 0
        with truncate_layers(model, layers), torch.inference_mode():
            for indices in batches:
                batch = collate([features[index] for index in indices])
                outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
                total, items = total + float(loss_of(outputs)) * count_items(batch), items + count_items(batch)
        return total / max(items, 1)

    return measure


@dataclass(frozen=True)
class PruningPlan:
    """Indices of the units of a model to keep, or None for all."""

    layers: list[int] | None = None
    heads: list[list[int]] | None = None
    """Heads per layer that is kept."""
    neurons: list[list[int]] | None = None


def load_to_measure(saved: CheckpointInfo, checkpoint: Checkpoint) -> Checkpoint:
    """Load a checkpoint as if to train it, so that it computes the loss that it was trained with.

    Raises:
        ModelError: If models of the family start with a new head.
    """
    context = replace(checkpoint.context, inference=False)
    model = saved.task.load_model(saved.folder, context, new_head=True)
    if get_loading_info(model).head == "new":
        message = f"models of the task family {saved.recipe.task} start with a new head, so importance is unknown"
        raise ModelError(message, "name the layers to keep, or prune only the vocabulary", file=saved.folder)
    return Checkpoint(model.to(checkpoint.machine.device), saved.task, context, checkpoint.machine)


def choose(checkpoint: Checkpoint, features: Features, shape: PruningTarget) -> PruningPlan:
    """Choose the units to keep by their importance on some rows; the model is changed in the process.

    Args:
        checkpoint: Result of `load_to_measure`.
        features: Features of rows with gold answers.
        shape: Shape with fewer layers, heads or neurons.

    Raises:
        UsageError: If the model computes no loss.
        ModelError: If its layers are unknown.
    """
    from bertkit.compression.importance import choose_units, score_units
    from bertkit.modeling.students.narrow import keep_layers, key_value_heads

    model = checkpoint.model
    config = model.config
    layers = list(shape.layers) if isinstance(shape.layers, tuple) else None
    if isinstance(shape.layers, int):
        fixed = int(get_architecture(config).first_layer_differs)
        measure = loss_with_layers(checkpoint, features)
        layers = choose_layers(config.num_hidden_layers, shape.layers, measure, fixed=fixed)
    # Layers first: which heads matter depends on the layers that are left.
    if layers is not None:
        keep_layers(model, layers)
    if shape.heads is None and shape.intermediate is None:
        return PruningPlan(layers)
    scores = score_units(checkpoint, features)
    # Query heads that share keys are kept or removed together.
    group_size = config.num_attention_heads // key_value_heads(config)
    return PruningPlan(
        layers,
        None if shape.heads is None else choose_units(scores.heads, shape.heads, group_size),
        None if shape.intermediate is None else choose_units(scores.neurons, shape.intermediate),
    )


def keep(model: Model, units: PruningPlan) -> None:
    """Remove all other units from a model."""
    from bertkit.modeling.students.narrow import keep_heads, keep_layers, keep_neurons

    if units.layers is not None:
        keep_layers(model, units.layers)
    if units.heads is not None:
        keep_heads(model, units.heads)
    if units.neurons is not None:
        keep_neurons(model, units.neurons)
