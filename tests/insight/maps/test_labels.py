"""Labels of points by frequency, and clusters that are found instead."""

from __future__ import annotations

import numpy as np

from bertkit.insight.maps.labels import find_labels
from bertkit.insight.maps.points import Occurrence


def points(labels):
    return [Occurrence(n, "good film" if n % 2 else "dull song", None, label, {}) for n, label in enumerate(labels)]


def test_labels_are_numbered_by_frequency_and_none_is_minus_one():
    found = find_labels(points(["b", "a", None, "a"]), np.zeros((4, 2)), None)
    assert found.names == {0: "a", 1: "b"} and found.numbers.tolist() == [1, 0, -1, 0]
    assert found.counts() == {"a": 2, "b": 1} and not found.are_clusters


def test_clusters_are_named_by_their_words():
    vectors = np.array([[1, 0.1], [0.1, 1], [1, 0], [0, 1], [0.9, 0]], dtype=np.float32)
    found = find_labels(points([None] * 5), vectors, 2)
    assert found.numbers.tolist() == [0, 1, 0, 1, 0]
    assert found.names == {0: "0  dull, song", 1: "1  film, good"}
    assert found.labels[0] == "0  dull, song" and found.are_clusters
