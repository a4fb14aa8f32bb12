"""Layers by number: those a head may read, those a student is made of, and those of its teacher that it follows."""

from __future__ import annotations

from collections.abc import Mapping

from bertkit.errors import RecipeError
from bertkit.recipe import LayerMap

LAYERS: Mapping[str, tuple[slice, str]] = {
    "embeddings": (slice(0, 1), "sum"),
    "last": (slice(-1, None), "sum"),
    "second_to_last": (slice(-2, -1), "sum"),
    "sum_last_four": (slice(-4, None), "sum"),
    "concat_last_four": (slice(-4, None), "concat"),
    "weighted_sum_last_four": (slice(-4, None), "weighted"),
    "weighted_sum": (slice(1, None), "weighted"),
}
"""Name -> which hidden states (the first are the embeddings), and how they make one vector a token.

The choices are those of Devlin et al. 2019, table 7.
"""

TAGGERS = ("linear", "bilstm")


def layers_to_take(wanted: int | list[int], count: int) -> list[int]:
    """Give the layers that a student is made of; a number of them is spread over all, as DistilBERT's are.

    >>> layers_to_take(3, 6), layers_to_take([1, 5], 6)
    ([0, 2, 4], [1, 5])

    Raises:
        RecipeError: the teacher has no such layers.
    """
    layers = [number * count // wanted for number in range(wanted)] if isinstance(wanted, int) else wanted
    if len(layers) > count or layers[-1] >= count:
        shown = wanted if isinstance(wanted, int) else ", ".join(map(str, wanted))
        what = f"student_layers {shown}: the first teacher has {count} layers"
        raise RecipeError(what, f"number them from 0 to {count - 1}")
    return layers


def match_layers(wanted: LayerMap, student: int, teacher: int) -> dict[int, int]:
    """Give the teacher's layer that each layer of the student follows.

    ``uniform`` is the map of TinyBERT (Jiao et al. 2020, section 3.1), ``last`` the last layer alone.

    >>> match_layers("uniform", 2, 6), match_layers("last", 2, 6)
    ({0: 2, 1: 5}, {1: 5})

    Raises:
        RecipeError: one of them has no such layer.
    """
    if wanted == "uniform":
        return {number: max((number + 1) * teacher // student - 1, 0) for number in range(student)}
    if wanted == "last":
        return {student - 1: teacher - 1}
    for one, other in wanted.items():
        if not (0 <= one < student and 0 <= other < teacher):
            what = f"the student's layer {one} cannot follow the teacher's layer {other}"
            raise RecipeError(what, f"they have {student} and {teacher} layers, counted from 0")
    return dict(wanted)
