"""Soft labels: a probability per label in a column of the training rows, such as from an LLM or from votes."""

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
    """Return the probability of each label that a cell names, without labels of probability 0.

    Args:
        value: Numbers by label, or a list of numbers in the order of the recipe's labels; both can be JSON.
        recipe: Recipe that declares the labels, and whether the numbers are counts.

    Raises:
        DataError: If the value is neither, a number is negative, or the sum is not 1.
    """
    numbers = parse_json(value)
    # 1. Bring both forms to numbers by label. In a struct of Parquet, labels without a number are null.
    if isinstance(numbers, (list, tuple)):
        labels = recipe.labels or []
        if len(numbers) != len(labels):
            message = f"a list of {len(numbers)} probabilities, and the recipe declares {len(labels)} labels"
            raise DataError(message, f"{_EXAMPLE}, or declare all labels in this order: --set 'labels=[a, b]'")
        numbers = dict(zip(labels, numbers, strict=True))
    if not isinstance(numbers, dict):
        raise DataError(f"{shorten(repr(value), 60)} is not a probability per label", _EXAMPLE)

    # 2. Check the numbers.
    for name, number in numbers.items():
        if not 0 <= as_number(number or 0) < math.inf:
            raise DataError(f"{number!r} is not a probability of {name!r}", "write a number from 0 to 1")
    by_label = {str(label_to_str(name)): as_number(number or 0) for name, number in numbers.items()}
    total = sum(by_label.values())
    is_count = recipe.distillation and recipe.distillation.normalize
    if not total or (abs(total - 1) > _TOLERANCE and not is_count):
        raise DataError(f"probabilities add up to {total:g}, not 1", "for counts: --set distillation.normalize=true")
    return {name: number / total for name, number in by_label.items() if number}


def fill_gold(train: Split, gold: str) -> Split:
    """Return training rows whose gold labels are their most probable soft labels, if they have no gold column."""
    if SOFT_LABELS not in train.rows[0] or gold in train.rows[0]:
        return train
    rows = ({**row, gold: max(row[SOFT_LABELS], key=row[SOFT_LABELS].__getitem__)} for row in train.rows)
    return replace(train, rows=offload_to_disk(rows))


def get_probabilities(train: Split, labels: Sequence[str], column: str) -> np.ndarray:
    """Return the probabilities of training rows, (rows, labels).

    Raises:
        DataError: If a row of the column names a label that is not among the labels.
    """
    import numpy as np

    probabilities = np.zeros((len(train.rows), len(labels)))
    ids = {normalize_label(label): index for index, label in enumerate(labels)}
    for index, row in enumerate(train.rows):
        for name, probability in row[SOFT_LABELS].items():
            label = normalize_label(name)
            if label not in ids:
                place = train.locate(index)._asdict()
                raise DataError(
                    f"{name!r} is not one of the labels", did_you_mean(name, labels), **place, column=column
                )
            probabilities[index, ids[label]] += probability
    return probabilities


def to_logits(probabilities: np.ndarray) -> np.ndarray:
    """Return logits whose softmax is these probabilities, of the same shape.

    >>> import numpy as np
    >>> to_logits(np.array([[0.5, 0.5, 0.0]])).round(3).tolist()
    [[-0.693, -0.693, -10000.0]]
    """
    import numpy as np

    # The logarithm of 0 is finite, because a logit of -inf would mean that the row lacks the label.
    return np.asarray(np.log(probabilities, where=probabilities > 0, out=np.full_like(probabilities, -1e4)))


def measure_agreement(probabilities: np.ndarray, gold: Sequence[int]) -> tuple[float, float]:
    """Return the fraction of rows whose most probable label is gold, and Cohen's kappa (1960).

    >>> import numpy as np
    >>> measure_agreement(np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.7, 0.3]]), [0, 0, 1, 1])
    (0.75, 0.5)
    """
    from sklearn.metrics import cohen_kappa_score

    chosen = probabilities.argmax(axis=1)
    kappa = cohen_kappa_score(gold, chosen, labels=range(probabilities.shape[1]))
    return float((chosen == gold).mean()), float(kappa)
