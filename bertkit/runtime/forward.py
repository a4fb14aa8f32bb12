"""Forward passes of exported models over features: rows are sorted by length, and outputs return in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bertkit.hardware.process import fitting_threads
from bertkit.runtime.model import ExportedModel
from bertkit.tokens.features import Collator, Feature, split_by_length, tokens_for


def forward_exported(
    model: ExportedModel,
    features: Sequence[Feature],
    lengths: Sequence[int],
    collate: Collator,
    tick: Callable[[int], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """Return the outputs of each feature, whose `lengths` are the tokens that it costs, as arrays without the batch.

    `tick` is called with the number of rows of each batch that is done. Several processes each do all the work.
    """
    outputs: dict[int, dict[str, Any]] = {}
    for numbers in split_by_length(lengths, tokens_for(fitting_threads().number)):
        arrays = model(collate([features[number] for number in numbers]))
        for position, number in enumerate(numbers):
            outputs[number] = {name: array[position] for name, array in arrays.items()}
        tick(len(numbers))
    return [outputs[number] for number in range(len(features))]
