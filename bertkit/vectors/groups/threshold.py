"""The cosine from which two texts are duplicates: from labeled pairs, or pairs of a file to label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit.data.files import read_records
from bertkit.errors import DataError
from bertkit.metrics.intervals import wilson_interval
from bertkit.metrics.linear import draw_rows
from bertkit.recipe import Data
from bertkit.vectors.groups.meaning import find_nearest
from bertkit.vectors.vector_files import Matrix

LABELS = {"1": True, "0": False, "true": True, "false": False, "yes": True, "no": False}
"""How a pair is said to be of duplicates, or not to be."""

_STEPS = np.arange(0.5, 1.0, 0.01).round(2)  # thresholds that are tried
_QUERIES = 2000  # rows whose nearest neighbors are looked up
_PER_BAND = 10  # pairs to label of each band of cosines


class LabeledPair(NamedTuple):
    """Two texts, and whether one is a duplicate of the other."""

    text: str
    text_pair: str
    is_duplicate: bool
    weight: float
    """The number of pairs that it stands for."""


class Step(NamedTuple):
    """A threshold, and what happens to pairs whose cosine is at least that."""

    threshold: float
    precision: float
    """Share of duplicates among them."""
    low: float
    """Lower end of its 95% interval."""
    recall: float
    """Their share of all duplicates."""
    pairs: int


def read_pairs(file: Path) -> list[LabeledPair]:
    """Read pairs with the columns text, text_pair and label, which is 1 or 0; rows without a label are skipped.

    Raises:
        DataError: a column is missing, a label is another, or one of the two labels does not occur.
    """
    pairs = []
    for line, record in read_records(file, Data()):
        for column in ("text", "text_pair", "label"):
            if column not in record:
                raise DataError(f"no column {column!r}", "pairs have text, text_pair and label", file=file)
        label = record["label"]
        # So a sample can be labeled in part.
        if label is None or str(label).strip() == "":
            continue
        number = str(int(label)) if isinstance(label, (bool, float)) and label == int(label) else str(label)
        if number.strip().lower() not in LABELS:
            remedy = "1 for duplicates, 0 for others"
            raise DataError(f"label {label!r}", remedy, file=file, row=line, column="label")
        try:
            weight = float(record.get("weight") or 1)
        except ValueError:
            what, remedy = f"weight {record['weight']!r} is not a number", "leave the column out, or repair it"
            raise DataError(what, remedy, file=file, row=line, column="weight") from None
        is_duplicate = LABELS[number.strip().lower()]
        pairs.append(LabeledPair(str(record["text"]), str(record["text_pair"]), is_duplicate, weight))
    if len({pair.is_duplicate for pair in pairs}) < 2:
        raise DataError("the labels are not of both kinds", "label some pairs 1 and some 0", file=file)
    return pairs


def measure_steps(cosines: Matrix, pairs: Sequence[LabeledPair]) -> list[Step]:
    """Measure precision and recall at each threshold that some pair reaches, the lowest first."""
    is_duplicate = np.array([pair.is_duplicate for pair in pairs])
    weights = np.array([pair.weight for pair in pairs])
    all_duplicates = weights[is_duplicate].sum()
    steps = []
    for threshold in _STEPS.tolist():
        over = cosines >= threshold
        if over.any():
            right = weights[over & is_duplicate].sum()
            count = int(over.sum())
            share = float(right / weights[over].sum())
            low, _ = wilson_interval(round(share * count), count)
            steps.append(Step(threshold, share, low, float(right / all_duplicates), count))
    return steps


def choose_threshold(steps: Sequence[Step], precision: float, file: Path) -> float:
    """Return the lowest threshold at which the precision is at least the one that is asked for.

    Raises:
        DataError: none has it.
    """
    chosen = min((step.threshold for step in steps if step.precision >= precision), default=None)
    if chosen is None:
        best = max((step.precision for step in steps), default=0.0)
        what = f"no threshold has a precision of {precision:g}; the best is {best:.2f}"
        raise DataError(what, "set --precision lower, or use another model", file=file)
    return chosen


class Neighbors(NamedTuple):
    """Rows that were drawn, the nearest other row of each, and their cosine."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    nearest: np.ndarray[Any, np.dtype[np.int64]]
    cosines: Matrix


class DrawnPair(NamedTuple):
    """A row and its nearest one, to be shown or labeled."""

    row: int
    nearest: int
    cosine: float
    weight: float
    """The number of pairs that it stands for."""

    def as_record(self, texts: Mapping[int, str]) -> dict[str, Any]:
        """Return a row of a file to label."""
        pair = {"text": texts[self.row], "text_pair": texts[self.nearest]}
        return {**pair, "label": "", "cosine": round(self.cosine, 4), "weight": self.weight}


def draw_neighbors(vectors: Matrix) -> Neighbors:
    """Draw rows, and find the nearest other row of each among all."""
    rows = draw_rows(len(vectors), _QUERIES, 42)
    nearest, cosines = find_nearest(vectors[rows], vectors, rows)
    return Neighbors(rows, nearest, cosines)


def draw_pairs(neighbors: Neighbors) -> Iterator[DrawnPair]:
    """Yield pairs of each band of cosines, the highest first, so that few labels tell the precision everywhere."""
    generator = np.random.default_rng(42)
    # a cosine may be rounded to more than 1
    bands = [*np.arange(0.5, 1.0, 0.05).round(2).tolist(), 2.0]
    for low, high in reversed(list(pairwise(bands))):
        band = np.flatnonzero((neighbors.cosines >= low) & (neighbors.cosines < high))
        drawn = generator.choice(band, min(len(band), _PER_BAND), replace=False)
        for number in drawn[np.argsort(-neighbors.cosines[drawn])].tolist():
            row, nearest = int(neighbors.rows[number]), int(neighbors.nearest[number])
            yield DrawnPair(row, nearest, min(float(neighbors.cosines[number]), 1.0), len(band) / len(drawn))


def summarize(neighbors: Neighbors, pairs: Sequence[DrawnPair], texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return, for round thresholds, the share of rows with a neighbor as near, and the farthest pair that was drawn."""
    summary = []
    for threshold in np.arange(0.95, 0.45, -0.05).round(2).tolist():
        over = [pair for pair in pairs if pair.cosine >= threshold]
        share = float((neighbors.cosines >= threshold).mean())
        example = {"text": texts[over[-1].row], "text_pair": texts[over[-1].nearest]} if over else {}
        summary.append({"threshold": threshold, "share": share, **example})
    return summary
