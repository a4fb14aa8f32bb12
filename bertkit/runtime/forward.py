"""Forward passes of exported models over features, in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bertkit.hardware.process import available_threads
from bertkit.runtime.model import ExportedModel
from bertkit.tokens.features import Collator, Feature, get_max_batch_tokens, split_by_length


def forward_exported(
    model: ExportedModel,
    features: Sequence[Feature],
    lengths: Sequence[int],
    collate: Collator,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """Return the outputs of each feature, as arrays without the batch axis, in the order of the features.

    In a launch of several processes, each process computes all features.

    Args:
        model: Exported model.
        features: Features of the rows.
        lengths: Number of tokens of each feature.
        collate: Function that makes a batch of features.
        advance: Function that is called with the number of rows of each finished batch.
    """
    outputs: dict[int, dict[str, Any]] = {}
    for indices in split_by_length(lengths, get_max_batch_tokens(available_threads().number)):
        arrays = model(collate([features[index] for index in indices]))
        for position, index in enumerate(indices):
            outputs[index] = {name: array[position] for name, array in arrays.items()}
        advance(len(indices))
    return [outputs[index] for index in range(len(features))]
