"""Which layers a model can do without: the one that raises the loss least is left out, again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bertkit.progress import SILENT, Progress, stage

if TYPE_CHECKING:
    from bertkit.evaluation.checkpoint import Checkpoint
    from bertkit.tokens.features import Features


def choose_layers(
    count: int, keep: int, measure: Callable[[list[int]], float], *, fixed: int = 0, progress: Progress = SILENT
) -> list[int]:
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
        progress: shows how many sets of layers are measured.
    """
    layers = list(range(count))
    total = sum(left - fixed for left in range(keep + 1, count + 1))
    with stage(progress, "choosing layers", total) as tick:
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
    from bertkit.evaluation.forward import sorted_batches
    from bertkit.modeling.students.narrow import only_layers
    from bertkit.tokens.feature_cache import lengths_of
    from bertkit.tokens.features import count_items

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
