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
    """Result of a check, with the locations of example rows."""

    level: Level
    group: str
    """Heading in the report, such as ``labels``."""
    name: str
    """Identifier for scripts, which stays the same if the text changes."""
    text: str
    places: tuple[RowLocation, ...] = ()
    count: int = 0
    """Number of rows with the finding; `places` has the first few."""


def locate_examples(split: Split, indices: Iterable[int]) -> tuple[RowLocation, ...]:
    """Return the locations of the first few of these rows."""
    return tuple(map(split.locate, islice(indices, EXAMPLES)))


def locate_pairs(pairs: Sequence[tuple[RowLocation, RowLocation]]) -> tuple[RowLocation, ...]:
    """Return the locations of the first pair, and of the first row of the second pair."""
    return tuple(dict.fromkeys([*(place for pair in pairs[:1] for place in pair), *(row for row, _ in pairs[1:2])]))


def get_severity(fraction: float, *, warn: float, fail: float = 2.0) -> Level:
    """Return ``fail`` for a fraction of at least `fail`, ``warn`` for at least `warn`, and ``good`` otherwise.

    >>> get_severity(0.0, warn=0.01), get_severity(0.05, warn=0.01, fail=0.1), get_severity(0.5, warn=0.01, fail=0.1)
    ('good', 'warn', 'fail')
    """
    return "fail" if fraction >= fail else "warn" if fraction >= warn else "good"


def predict_unseen(model: Any, features: Any, labels: np.ndarray, folds: Any, method: str = "predict") -> np.ndarray:
    """Predict each item with a scikit-learn model that was fitted to the other folds.

    Args:
        model: Estimator, which is cloned for each fold.
        features: Features of all items.
        labels: Label of each item. Shape: (items,).
        folds: Argument `cv` of `cross_val_predict`.
        method: Method of the estimator to call.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import cross_val_predict

    with warnings.catch_warnings():
        # Findings do not change with more iterations, and a fold can lack a rare label.
        for category in (ConvergenceWarning, UserWarning, RuntimeWarning):
            warnings.simplefilter("ignore", category)
        return np.asarray(cross_val_predict(model, features, labels, cv=folds, method=method))


_FINAL_PUNCTUATION = ".!?…。！？ "
_SEPARATOR = "\x1f"  # between the columns of a row; `normalize` removes it from texts


def get_input_columns(columns: ColumnSpec) -> list[str]:
    """Return the columns that a model reads."""
    return [name for name in columns.names if name not in (columns.gold, "id")]


def read_texts(row: Row, columns: ColumnSpec) -> dict[str, str]:
    """Return the texts of a row by column; words or choices are joined by spaces.

    >>> read_texts({"text": "A cat", "label": "good"}, ColumnSpec(inputs=("text",), gold="label"))
    {'text': 'A cat'}
    """
    texts = {}
    for name in get_input_columns(columns):
        value = row.get(name)
        if isinstance(value, (list, tuple)) and value and all(isinstance(part, str) for part in value):
            texts[name] = " ".join(value)
        elif isinstance(value, str):
            texts[name] = value
    return texts


def digest_inputs(rows: Sequence[Row], columns: ColumnSpec) -> Digests:
    """Return a digest of each row's inputs, which ignores case, whitespace and final punctuation."""
    texts = (_SEPARATOR.join(_normalize_inputs(row, columns)) for row in rows)
    return np.fromiter(map(digest_text, texts), np.uint64, len(rows))


def digest_other_columns(row: Row, columns: ColumnSpec, column: str) -> int:
    """Return a digest of all input columns except one."""
    # Python salts the hash of a text for each process, so the digest must not be stored.
    return hash(tuple(_normalize_inputs({**row, column: None}, columns)))


def _normalize_inputs(row: Row, columns: ColumnSpec) -> list[str]:
    texts, names = read_texts(row, columns), get_input_columns(columns)
    return [_normalize_text(texts[name]) if name in texts else repr(row.get(name)) for name in names]


@lru_cache(50_000)  # several questions can have the same paragraph
def _normalize_text(text: str) -> str:
    normalized = normalize(text)
    return normalized.rstrip(_FINAL_PUNCTUATION) or normalized
