"""Soft labels: a probability per label in a column of the training rows, for example from an LLM or from votes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bertkit.data.columns import SOFT_LABELS
from bertkit.data.formats.json import parse_json
from bertkit.data.labels import label_to_str, normalize_label
from bertkit.data.rows import Split
from bertkit.data.text import as_number
from bertkit.errors import DataError, did_you_mean, shorten
from bertkit.recipe.records import Recipe
from bertkit.storage.disk import offload_to_disk

if TYPE_CHECKING:
    import numpy as np

_TOLERANCE = 1e-3  # probabilities may have been rounded
_EXAMPLE = 'write {"negative": 0.1, "positive": 0.9}'


def read_soft_labels(value: Any, recipe: Recipe) -> dict[str, float]:
    """Return label -> probability for a cell, without labels of probability 0.

    Args:
        value: Label -> probability or count, or a list in the order of the recipe's labels; both can be JSON.
        recipe: Recipe that declares the labels, and whether the values are counts.

    Raises:
        DataError: If the value is neither, a probability is negative, or the sum is not 1.
    """
    probabilities = parse_json(value)
    # 1. Convert a list to a dictionary. In a struct of Parquet, missing labels are null.
    if isinstance(probabilities, (list, tuple)):
        labels = recipe.labels or []
        if len(probabilities) != len(labels):
            message = f"a list of {len(probabilities)} probabilities, but the recipe declares {len(labels)} labels"
            raise DataError(message, f"{_EXAMPLE}, or declare all labels in this order: --set 'labels=[a, b]'")
        probabilities = dict(zip(labels, probabilities, strict=True))
    if not isinstance(probabilities, dict):
        raise DataError(f"{shorten(repr(value), 60)} is not a probability per label", _EXAMPLE)

    # 2. Check the probabilities.
    for name, probability in probabilities.items():
        if not 0 <= as_number(probability or 0) < math.inf:
            raise DataError(f"{probability!r} is not a probability of {name!r}", "write a number from 0 to 1")
    by_label = {str(label_to_str(name)): as_number(probability or 0) for name, probability in probabilities.items()}
    total = sum(by_label.values())
    is_count = recipe.distillation and recipe.distillation.normalize
    if not total or (abs(total - 1) > _TOLERANCE and not is_count):
        raise DataError(f"probabilities add up to {total:g}, not 1", "for counts: --set distillation.normalize=true")
    return {name: probability / total for name, probability in by_label.items() if probability}


def fill_gold(train: Split, gold: str) -> Split:
    """Use the most probable soft label of each training row as its gold label, unless the rows have gold labels."""
    if SOFT_LABELS not in train.rows[0] or gold in train.rows[0]:
        return train
    rows = ({**row, gold: max(row[SOFT_LABELS], key=row[SOFT_LABELS].__getitem__)} for row in train.rows)
    return replace(train, rows=offload_to_disk(rows))


def get_probabilities(train: Split, labels: Sequence[str], column: str) -> np.ndarray:
    """Return the soft labels of training rows as an array. Shape: (rows, labels).

    Raises:
        DataError: If a soft label is not one of the labels.
    """
    import numpy as np

    probabilities = np.zeros((len(train.rows), len(labels)))
    ids = {normalize_label(label): index for index, label in enumerate(labels)}
    for index, row in enumerate(train.rows):
        for name, probability in row[SOFT_LABELS].items():
            label = normalize_label(name)
            if label not in ids:
                location = train.locate(index)._asdict()
                raise DataError(
                    f"{name!r} is not one of the labels", did_you_mean(name, labels), **location, column=column
                )
            probabilities[index, ids[label]] += probability
    return probabilities


def to_logits(probabilities: np.ndarray) -> np.ndarray:
    """Return logits whose softmax equals the probabilities.

    >>> import numpy as np
    >>> to_logits(np.array([[0.5, 0.5, 0.0]])).round(3).tolist()
    [[-0.693, -0.693, -10000.0]]
    """
    import numpy as np

    # Use a finite logarithm for 0, because a logit of -inf would mean that the row lacks the label.
    return np.asarray(np.log(probabilities, where=probabilities > 0, out=np.full_like(probabilities, -1e4)))


def measure_agreement(probabilities: np.ndarray, gold: Sequence[int]) -> tuple[float, float]:
    """Return the fraction of rows whose most probable label is the gold label, and Cohen's kappa (1960).

    >>> import numpy as np
    >>> measure_agreement(np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.7, 0.3]]), [0, 0, 1, 1])
    (0.75, 0.5)
    """
    from sklearn.metrics import cohen_kappa_score

    top_labels = probabilities.argmax(axis=1)
    kappa = cohen_kappa_score(gold, top_labels, labels=range(probabilities.shape[1]))
    return float((top_labels == gold).mean()), float(kappa)
