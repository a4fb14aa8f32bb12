"""What colors the points of a map: their labels, or clusters that are found among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.insight.maps.points import Occurrence
from bertkit.metrics import Numbers
from bertkit.vectors.clusters import find_words, fit_clusters

_CLUSTER_WORDS = 5  # in the name of a cluster


@dataclass(frozen=True)
class Labeling:
    """The label of each point."""

    labels: Sequence[str | None]
    numbers: Numbers
    """(points,): the number of each point's label; -1 without one."""
    names: dict[int, str]
    """Number -> label, the most frequent first."""
    are_clusters: bool

    def counts(self) -> dict[str, int]:
        """Return label -> how many points have it, the most frequent first."""
        counts = Counter(self.numbers.tolist())
        return {name: counts[number] for number, name in self.names.items()}


def find_labels(points: Sequence[Occurrence], vectors: Numbers, clusters: int | None, seed: int = 42) -> Labeling:
    """Return the labels of points, or the clusters of their vectors by k-means, named by their words.

    Args:
        points: with their labels.
        vectors: (points, dimension); only clusters look at them.
        clusters: how many there are; None for the labels.
        seed: of k-means.

    Raises:
        UsageError: more clusters than different vectors.
    """
    if clusters is not None:
        numbers = fit_clusters(vectors, "kmeans", clusters, seed=seed)[1]
        words = find_words([point.text for point in points], numbers)
        names = {number: f"{number}  {', '.join(some[:_CLUSTER_WORDS])}".rstrip() for number, some in enumerate(words)}
        return Labeling([names[number] for number in numbers.tolist()], numbers, names, are_clusters=True)
    labels = [point.label for point in points]
    ranked = Counter(label for label in labels if label is not None).most_common()
    number_of = {label: number for number, (label, _) in enumerate(ranked)}
    numbers = np.array([-1 if label is None else number_of[label] for label in labels], dtype=np.int64)
    return Labeling(labels, numbers, dict(enumerate(number_of)), are_clusters=False)
