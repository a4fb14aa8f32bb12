"""Selection of layers by their indices: for a head, for a student, or to freeze and reinitialize."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from bertkit.errors import RecipeError, UsageError
from bertkit.recipe.records import LayerMap
from bertkit.recipe.sections import TrainingConfig


class LayerChoice(NamedTuple):
    """Hidden states that a head reads, and how they are combined into one vector per token."""

    states: slice
    """Slice of the embeddings (index 0) and the outputs of all layers."""
    reduction: Literal["sum", "mean", "concat", "weighted"]


LAYER_CHOICES: Mapping[str, LayerChoice] = {
    "embeddings": LayerChoice(slice(0, 1), "sum"),
    "last": LayerChoice(slice(-1, None), "sum"),
    "second_to_last": LayerChoice(slice(-2, -1), "sum"),
    "sum_last_four": LayerChoice(slice(-4, None), "sum"),
    "concat_last_four": LayerChoice(slice(-4, None), "concat"),
    "weighted_sum_last_four": LayerChoice(slice(-4, None), "weighted"),
    "weighted_sum": LayerChoice(slice(1, None), "weighted"),
}
"""Feature-based approaches of Devlin et al. 2019, table 7, by name."""

TAGGERS = ("linear", "bilstm")
"""Heads over these layers."""

_LAST_LAYERS = re.compile(r"(mean|sum|concat)_last_([1-9]\d{0,2})")


def read_layer_choice(name: str) -> LayerChoice:
    """Parse the name of a choice: ``mean_last_4``, ``concat_last_2``, ``concat_all``, or a name in `LAYER_CHOICES`.

    >>> read_layer_choice("mean_last_4")
    LayerChoice(states=slice(-4, None, None), reduction='mean')

    Raises:
        UsageError: If the name is unknown, or the choice has weights to train.
    """
    if match := _LAST_LAYERS.fullmatch(name):
        return LayerChoice(slice(-int(match[2]), None), match[1])  # type: ignore[arg-type]
    if name == "concat_all":
        return LayerChoice(slice(0, None), "concat")
    choice = LAYER_CHOICES.get(name)
    if choice is None or choice.reduction == "weighted":
        names = ", ".join(name for name, (_, reduction) in LAYER_CHOICES.items() if reduction != "weighted")
        remedy = f"mean_last_K, sum_last_K, concat_last_K, concat_all, or {names}"
        raise UsageError(f"layers {name!r} are not known", remedy)
    return choice


def count_layers(config: Mapping[str, Any]) -> int | None:
    """Return the number of layers in the content of a ``config.json``, or None if it is missing.

    >>> count_layers({"num_hidden_layers": 12}), count_layers({"n_layers": 6}), count_layers({})
    (12, 6, None)
    """
    count = config.get("num_hidden_layers", config.get("n_layers"))
    return count if isinstance(count, int) else None


def layers_to_take(choice: int | list[int], count: int) -> list[int]:
    """Return the indices of the teacher's layers that a student copies.

    A list has the indices themselves. A count selects layers at equal distances, as in DistilBERT.

    >>> layers_to_take(3, 6), layers_to_take([1, 5], 6)
    ([0, 2, 4], [1, 5])

    Raises:
        RecipeError: If the teacher lacks these layers.
    """
    layers = [index * count // choice for index in range(choice)] if isinstance(choice, int) else choice
    if len(layers) > count or layers[-1] >= count:
        text = choice if isinstance(choice, int) else ", ".join(map(str, choice))
        message = f"student_layers {text}: the first teacher has {count} layers"
        raise RecipeError(message, f"number them from 0 to {count - 1}")
    return layers


def match_layers(layer_map: LayerMap, student_count: int, teacher_count: int) -> dict[int, int]:
    """Map layers of the student to the layers of the teacher that they learn from.

    ``uniform`` is the map of TinyBERT (Jiao et al. 2020, section 3.1); ``last`` maps only the last layer.

    >>> match_layers("uniform", 2, 6), match_layers("last", 2, 6)
    ({0: 2, 1: 5}, {1: 5})

    Raises:
        RecipeError: If a model lacks a layer of the map.
    """
    if layer_map == "uniform":
        return {index: max((index + 1) * teacher_count // student_count - 1, 0) for index in range(student_count)}
    if layer_map == "last":
        return {student_count - 1: teacher_count - 1}
    for student_layer, teacher_layer in layer_map.items():
        if not (0 <= student_layer < student_count and 0 <= teacher_layer < teacher_count):
            message = f"the student's layer {student_layer} cannot learn from the teacher's layer {teacher_layer}"
            raise RecipeError(message, f"they have {student_count} and {teacher_count} layers, counted from 0")
    return dict(layer_map)


def check_layers(training: TrainingConfig, count: int) -> None:
    """Check the numbers of layers that a recipe freezes and reinitializes, for an encoder with `count` layers.

    Raises:
        RecipeError: If the encoder has fewer layers, or reinitialized layers would be frozen.
    """
    num_frozen = training.freeze if isinstance(training.freeze, int) else 0
    num_new = training.reinit_layers or 0
    if num_frozen >= count:
        remedy = "choose fewer, or `encoder`, which trains only the head"
        raise RecipeError(f"training.freeze {num_frozen}: this model has {count} layers", remedy)
    if num_new > count:
        raise RecipeError(f"training.reinit_layers {num_new}: this model has {count} layers", "choose fewer")
    if num_frozen + num_new > count:
        problem = f"with training.freeze {num_frozen}, new layers would never be trained"
        remedy = f"this model has {count} layers: lower one of the two"
        raise RecipeError(f"training.reinit_layers {num_new}: {problem}", remedy)
