"""How well labels lie apart, compared with plain loops over all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.insight.maps import separation
from bertkit.insight.maps.separation import choose, most_frequent_share, separate


def loop(vectors, labels):
    """Compute silhouette (Rousseeuw 1987) and the share of points whose nearest other point has their label."""
    vectors = [vector / np.linalg.norm(vector) for vector in vectors]
    silhouettes, hits = [], 0
    for own, label in enumerate(labels):
        distances = {other: np.linalg.norm(vectors[own] - vectors[other]) for other in range(len(labels))}
        groups = {}
        for other, distance in distances.items():
            if other != own:
                groups.setdefault(labels[other], []).append(distance)
        hits += labels[min((other for other in distances if other != own), key=lambda other: distances[other])] == label
        within = groups.pop(label, None)
        nearest = min(np.mean(group) for group in groups.values())
        silhouettes.append(0 if within is None else (nearest - np.mean(within)) / max(nearest, np.mean(within)))
    return np.mean(silhouettes), hits / len(labels)


def test_both_numbers_are_those_of_a_plain_loop():
    labels = ["a"] * 9 + ["b"] * 7 + ["alone"]
    vectors = np.random.default_rng(0).normal(size=(17, 5)) + [[label == "b", 0, 0, 0, 1] for label in labels]
    found = separate(vectors, labels)
    silhouette, nearest = loop(vectors, labels)
    assert found.points == 17
    assert found.silhouette == pytest.approx(silhouette, abs=1e-5)
    assert found.nearest == pytest.approx(nearest)
    assert found.interval[0] < nearest < found.interval[1]


@pytest.mark.parametrize("labels", [["a", "a", "a"], ["a", "b", "c"]])
def test_one_label_or_one_per_point_has_no_numbers(labels):
    found = separate(np.eye(3), labels)
    assert (found.silhouette, found.nearest, found.interval) == (None, None, None)


def test_only_labeled_points_are_compared_and_of_many_a_sample(monkeypatch):
    labels = ["a", None, "b", "a"] * 30
    assert choose(labels).tolist() == [number for number, label in enumerate(labels) if label]
    monkeypatch.setattr(separation, "MOST_COMPARED", 10)
    some = choose(labels, seed=1).tolist()
    assert len(set(some)) == 10 and some == sorted(some) and all(labels[number] for number in some)
    assert most_frequent_share(labels) == 2 / 3
    assert most_frequent_share([None]) is None
