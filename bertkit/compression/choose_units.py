"""What of a model is kept: layers first, then the heads and neurons of those that are left, by measured importance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bertkit.compression.target_shape import Shape
from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint
from bertkit.evaluation.forward import sorted_batches
from bertkit.modeling.architectures import architecture_of
from bertkit.modeling.info import Model, get_loading_info
from bertkit.progress import stage
from bertkit.tokens.feature_cache import lengths_of
from bertkit.tokens.features import Features, count_items


def choose_layers(count: int, keep: int, measure: Callable[[list[int]], float], *, fixed: int = 0) -> list[int]:
    """Return the numbers of the layers to keep of `count`.

    Each step measures the loss without each layer that is left, and leaves out the one with the lowest; of equal ones
    the last. Layers depend on each other, so what is left is measured anew.

    >>> choose_layers(4, 2, lambda layers: -sum(layers))
    [2, 3]

    Args:
        count: layers of the model.
        keep: layers that are to be left.
        measure: returns the loss with some layers only.
        fixed: the first so many layers always stay.
    """
    layers = list(range(count))
    total = sum(left - fixed for left in range(keep + 1, count + 1))
    with stage("choosing layers", total) as tick:
        while len(layers) > keep:
            losses = []
            for layer in layers[fixed:]:
                losses.append((measure([other for other in layers if other != layer]), -layer))
                tick(1)
            layers.remove(-min(losses)[1])
    return layers


def loss_with_layers(checkpoint: Checkpoint, features: Features) -> Callable[[list[int]], float]:
    """Return a function that computes the mean loss of a model on features with some of its layers only.

    It raises UsageError where the model computes no loss.
    """
    import torch

    from bertkit.compression.importance import loss_of
    from bertkit.modeling.students.narrow import only_layers

    model, collate = checkpoint.model, checkpoint.task.collator(checkpoint.setup)
    model.eval()
    model.training = True  # a head over vectors computes a loss in training mode only
    batches = sorted_batches(lengths_of(features).tolist())

    def measure(layers: list[int]) -> float:
        total, items = 0.0, 0
        with only_layers(model, layers), torch.inference_mode():
            for numbers in batches:
                batch = collate([features[number] for number in numbers])
                outputs = model(**{name: value.to(model.device) for name, value in batch.items()})
                total, items = total + float(loss_of(outputs)) * count_items(batch), items + count_items(batch)
        return total / max(items, 1)

    return measure


@dataclass(frozen=True)
class Kept:
    """Numbers of what is kept of a model; None for all."""

    layers: list[int] | None = None
    heads: list[list[int]] | None = None
    """Numbers of the heads of each layer that is kept."""
    neurons: list[list[int]] | None = None


def load_to_measure(saved: SavedCheckpoint, checkpoint: Checkpoint) -> Checkpoint:
    """Load a checkpoint as if to train it, so that it computes the loss that it was trained with.

    Raises:
        ModelError: a family whose models begin with a new head.
    """
    setup = replace(checkpoint.setup, inference=False)
    model = saved.task.load_model(saved.folder, setup, new_head=True)
    if get_loading_info(model).head == "new":
        what = f"models of the task family {saved.recipe.task} begin with a new head, so importance cannot be measured"
        raise ModelError(what, "name the layers to keep, or prune the vocabulary alone", file=saved.folder)
    return Checkpoint(model.to(checkpoint.machine.device), saved.task, setup, checkpoint.machine)


def choose(checkpoint: Checkpoint, features: Features, shape: Shape) -> Kept:
    """Choose what a shape keeps of a model by what matters on some rows; the model is changed on the way.

    Args:
        checkpoint: made by `load_to_measure`.
        features: of rows with gold answers.
        shape: has fewer layers, heads or neurons.

    Raises:
        UsageError: the model computes no loss.
        ModelError: its layers are not known.
    """
    from bertkit.compression.importance import choose_units, score_units
    from bertkit.modeling.students.narrow import keep_layers, key_value_heads

    model = checkpoint.model
    config = model.config
    layers = list(shape.layers) if isinstance(shape.layers, tuple) else None
    if isinstance(shape.layers, int):
        fixed = int(architecture_of(config).first_layer_differs)
        measure = loss_with_layers(checkpoint, features)
        layers = choose_layers(config.num_hidden_layers, shape.layers, measure, fixed=fixed)
    # Layers first: which heads matter depends on the layers that are left.
    if layers is not None:
        keep_layers(model, layers)
    if shape.heads is None and shape.intermediate is None:
        return Kept(layers)
    scores = score_units(checkpoint, features)
    # Query heads that share keys stay or go together.
    together = config.num_attention_heads // key_value_heads(config)
    return Kept(
        layers,
        None if shape.heads is None else choose_units(scores.heads, shape.heads, together),
        None if shape.intermediate is None else choose_units(scores.neurons, shape.intermediate),
    )


def keep(model: Model, kept: Kept) -> None:
    """Leave out of a model what is not kept."""
    from bertkit.modeling.students.narrow import keep_heads, keep_layers, keep_neurons

    if kept.layers is not None:
        keep_layers(model, kept.layers)
    if kept.heads is not None:
        keep_heads(model, kept.heads)
    if kept.neurons is not None:
        keep_neurons(model, kept.neurons)
