"""How well the labels of points lie apart in the whole space of a layer, not in the plane that is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.metrics import Numbers
from bertkit.metrics.intervals import wilson_interval
from bertkit.metrics.linear import draw_rows
from bertkit.vectors.near_vectors import find_nearest
from bertkit.vectors.vector_files import to_unit_length

MOST_COMPARED = 4000
"""Points that are compared with each other; of more, as many are drawn."""


@dataclass(frozen=True)
class Separation:
    """How well labels lie apart at a layer."""

    points: int
    """With a label, and compared."""
    silhouette: float | None
    """Mean silhouette by label (Rousseeuw 1987), from -1 to 1, by Euclidean distance; None with one label, or one per
    point."""
    nearest: float | None
    """Share of points whose nearest other point, by cosine, has their label; None as above, and for clusters."""
    interval: tuple[float, float] | None
    """The 95% interval of `nearest` (Wilson)."""


def choose(labels: Sequence[str | None], seed: int = 42) -> Numbers:
    """Return the numbers of the points to compare, in order: those with a label, or as many of them as are compared."""
    labeled = np.flatnonzero([label is not None for label in labels])
    return np.asarray(labeled[draw_rows(len(labeled), MOST_COMPARED, seed)])


def most_frequent_share(labels: Sequence[str | None]) -> float | None:
    """Return the share of the most frequent label among all labels; None where there is none."""
    counts = Counter(label for label in labels if label is not None)
    return counts.most_common(1)[0][1] / counts.total() if counts else None


def separate(vectors: Numbers, labels: Sequence[str]) -> Separation:
    """Compute how well labels lie apart.

    Args:
        vectors: (points, dimension); they have length 1 before they are compared.
        labels: one per point.
    """
    count, different = len(labels), len(set(labels))
    if not 2 <= different < count:
        return Separation(count, None, None, None)
    from sklearn.metrics import silhouette_score

    vectors = to_unit_length(np.asarray(vectors, dtype=np.float32))
    number_of = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    numbers = np.array([number_of[label] for label in labels])
    nearest, _ = find_nearest(vectors, vectors, np.arange(count))
    hits = int((numbers[nearest] == numbers).sum())
    silhouette = float(silhouette_score(vectors, numbers))
    return Separation(count, silhouette, hits / count, wilson_interval(hits, count))
