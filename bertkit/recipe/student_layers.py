"""How a recipe or a command names the layers that a student is built from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

_MAX_LAYERS = 1000  # more than any encoder has, and few enough to list


def read_layers(value: Any) -> int | list[int] | None:
    """Read the layers of a student from a recipe or a command: ascending indexes from 0, or a number of layers.

    >>> read_layers("0, 2, 4"), read_layers([1, 5]), read_layers("3"), read_layers("0,"), read_layers(None)
    ([0, 2, 4], [1, 5], 3, [0], None)

    Raises:
        ValueError: neither of these.
    """
    if value is None:
        return None
    layers = value
    if isinstance(value, str):
        is_list, parts = "," in value, value.rstrip().removesuffix(",").split(",")
        layers = parts if is_list else int(value) if _is_layer(value) else value
    if isinstance(layers, int) and not isinstance(layers, bool) and 1 <= layers <= _MAX_LAYERS:
        return layers
    if isinstance(layers, list) and layers and all(map(_is_layer, layers)):
        indexes = [int(layer) for layer in layers]
        if all(lower < higher for lower, higher in pairwise(indexes)):
            return indexes
    raise ValueError("must be layers in ascending order, from 0, such as [0, 2, 4], or a number of layers")


def _is_layer(value: object) -> bool:
    text = str(value).strip()
    return text.isdecimal() and len(text) <= len(str(_MAX_LAYERS))
