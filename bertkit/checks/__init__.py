"""Checks of the rows of a dataset, with rows as examples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import Digests, RowLocation, Split
from bertkit.data.text import normalize
from bertkit.recipe.sections import Row
from bertkit.vectors.minhash import digest_text

EXAMPLES = 3

Level = Literal["good", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """Result of a check: its level, its subject, and rows as examples."""

    level: Level
    group: str
    """Heading in the report, such as ``labels``."""
    name: str
    """Name for programs, which does not depend on the text."""
    text: str
    places: tuple[RowLocation, ...] = ()
    count: int = 0
    """Number of such rows; `places` has the first of them."""


def get_example_places(split: Split, indices: Iterable[int]) -> tuple[RowLocation, ...]:
    """Return the places of the first rows at some indices of a split."""
    return tuple(map(split.place, islice(indices, EXAMPLES)))


def get_pair_places(pairs: Sequence[tuple[RowLocation, RowLocation]]) -> tuple[RowLocation, ...]:
    """Return the places of the first pair, and of the first row of the second pair."""
    return tuple(dict.fromkeys([*(place for pair in pairs[:1] for place in pair), *(row for row, _ in pairs[1:2])]))


def get_severity(share: float, *, warn: float, fail: float = 2.0) -> Level:
    """Return ``fail`` if a fraction is at least `fail`, or ``warn`` if it is at least `warn`, or ``good``.

    >>> get_severity(0.0, warn=0.01), get_severity(0.05, warn=0.01, fail=0.1), get_severity(0.5, warn=0.01, fail=0.1)
    ('good', 'warn', 'fail')
    """
    return "fail" if share >= fail else "warn" if share >= warn else "good"


def predict_unseen(model: Any, features: Any, labels: np.ndarray, folds: Any, method: str = "predict") -> np.ndarray:
    """Return predictions for all items, each by a model of scikit-learn that was fitted to the other folds.

    Args:
        model: Estimator, which is cloned for each fold.
        features: Features of all items.
        labels: Labels, (items,).
        folds: Folds as `cross_val_predict` takes them.
        method: Method of the estimator that predicts.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import cross_val_predict

    with warnings.catch_warnings():
        # More iterations would not change a finding, and a fold can lack a rare label.
        for category in (ConvergenceWarning, UserWarning, RuntimeWarning):
            warnings.simplefilter("ignore", category)
        return np.asarray(cross_val_predict(model, features, labels, cv=folds, method=method))


_LAST_MARKS = ".!?…。！？ "
_SEPARATOR = "\x1f"  # Separates the columns of a row; normalized text does not contain it.


def input_columns(columns: ColumnSpec) -> list[str]:
    """Return the columns that a model reads."""
    return [name for name in columns.names if name not in (columns.gold, "id")]


def read_texts(row: Row, columns: ColumnSpec) -> dict[str, str]:
    """Return the texts of a row by column; words or choices are joined by spaces.

    >>> read_texts({"text": "A cat", "label": "good"}, ColumnSpec(inputs=("text",), gold="label"))
    {'text': 'A cat'}
    """
    texts = {}
    for name in input_columns(columns):
        value = row.get(name)
        if isinstance(value, (list, tuple)) and value and all(isinstance(part, str) for part in value):
            texts[name] = " ".join(value)
        elif isinstance(value, str):
            texts[name] = value
    return texts


def digest_inputs(rows: Sequence[Row], columns: ColumnSpec) -> Digests:
    """Return a digest of each row's inputs; rows are alike if only case, whitespace and last marks differ."""
    return np.fromiter((digest_text(_SEPARATOR.join(_parts(row, columns))) for row in rows), np.uint64, len(rows))


def digest_others(row: Row, columns: ColumnSpec, column: str) -> int:
    """Return a digest of all columns that a model reads but one."""
    # Python salts the hash of a text for each process, so the digest must not be stored.
    return hash(tuple(_parts({**row, column: None}, columns)))


def _parts(row: Row, columns: ColumnSpec) -> list[str]:
    texts = read_texts(row, columns)
    return [_normalize_text(texts[name]) if name in texts else repr(row.get(name)) for name in input_columns(columns)]


@lru_cache(50_000)  # Several questions can have the same paragraph.
def _normalize_text(text: str) -> str:
    normalized = normalize(text)
    return normalized.rstrip(_LAST_MARKS) or normalized
