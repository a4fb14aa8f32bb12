"""What of a model is kept: layers first, then the heads and neurons of those that are left, by measured importance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bertkit.compression.drop_layers import choose_layers, loss_with_layers
from bertkit.compression.target_shape import Shape
from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint
from bertkit.modeling.info import info_of
from bertkit.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bertkit.tokens.features import Features


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
    if info_of(model).has_new_head:
        what = f"models of the task family {saved.recipe.task} begin with a new head, so importance cannot be measured"
        raise ModelError(what, "name the layers to keep, or prune the vocabulary alone", file=saved.folder)
    return Checkpoint(model.to(checkpoint.machine.device), saved.task, setup, checkpoint.machine)


def choose(checkpoint: Checkpoint, features: Features, shape: Shape, progress: Progress) -> Kept:
    """Choose what a shape keeps of a model by what matters on some rows; the model is changed on the way.

    Args:
        checkpoint: made by `load_to_measure`.
        features: of rows with gold answers.
        shape: has fewer layers, heads or neurons.
        progress: shows how far it is.

    Raises:
        UsageError: the model computes no loss.
        ModelError: its layers are not known.
    """
    from bertkit.compression.importance import choose_units, score_units
    from bertkit.modeling.architectures import architecture_of
    from bertkit.modeling.students.narrow import keep_layers, key_value_heads

    model = checkpoint.model
    config = model.config
    layers = list(shape.layers) if isinstance(shape.layers, tuple) else None
    if isinstance(shape.layers, int):
        fixed = int(architecture_of(config).first_layer_differs)
        measure = loss_with_layers(checkpoint, features)
        layers = choose_layers(config.num_hidden_layers, shape.layers, measure, fixed=fixed, progress=progress)
    # Layers first: which heads matter depends on the layers that are left.
    if layers is not None:
        keep_layers(model, layers)
    if shape.heads is None and shape.intermediate is None:
        return Kept(layers)
    scores = score_units(checkpoint, features, progress)
    # Query heads that share keys stay or go together.
    together = config.num_attention_heads // key_value_heads(config)
    return Kept(
        layers,
        None if shape.heads is None else choose_units(scores.heads, shape.heads, together),
        None if shape.intermediate is None else choose_units(scores.neurons, shape.intermediate),
    )


def keep(model: PreTrainedModel, kept: Kept) -> None:
    """Leave out of a model what is not kept."""
    from bertkit.modeling.students.narrow import keep_heads, keep_layers, keep_neurons

    if kept.layers is not None:
        keep_layers(model, kept.layers)
    if kept.heads is not None:
        keep_heads(model, kept.heads)
    if kept.neurons is not None:
        keep_neurons(model, kept.neurons)
