"""Which layers are drawn, and what is said of each."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import UsageError
from bertkit.insight.layer_vectors import LayerVectors
from bertkit.insight.maps.labels import Labeling
from bertkit.insight.maps.layers import describe, layer_rows, measure_layers, read_layers


def labeling(labels, are_clusters=False):
    return Labeling(labels, np.zeros(len(labels)), {}, are_clusters)


def test_layers_are_all_the_last_or_some():
    assert read_layers("all", 2) == [0, 1, 2]
    assert read_layers("last", 2) == [2]
    assert read_layers("2,0,2", 2) == [0, 2]
    assert read_layers("all", None) == [] and read_layers("7", None) == [7]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("first", "--layers first - all, last, or"),
        ("0,3", r"no layer 3 - 0 \(the embeddings\) to 2"),
        ("-1", "no layer -1"),
    ],
)
def test_other_layers_are_refused(choice, message):
    with pytest.raises(UsageError, match=message):
        read_layers(choice, 2)


def test_a_layer_that_keeps_labels_apart_has_the_better_numbers():
    labels = ["a", "b", None] * 20
    chance = np.random.default_rng(0).normal(size=(60, 2, 4)).astype(np.float32)
    chance[:, 1, 0] += [{"a": 9, "b": -9, None: 0}[label] for label in labels]
    vectors = LayerVectors(chance, np.arange(60), np.zeros(60))
    planes, (first, last) = measure_layers(vectors, [0, 1], labeling(labels), "pca", 42)
    assert [plane.points.shape for plane in planes] == [(60, 2)] * 2
    assert last.separation.points == 40
    assert last.separation.nearest == 1 and first.separation.nearest < 0.8
    assert last.separation.silhouette > 0.7 > first.separation.silhouette
    rows = layer_rows([first, last], are_clusters=False)
    measured = ["silhouette (Euclidean)", "nearest has the label", "95% interval"]
    assert list(rows[1]) == ["layer", "1st component", "2nd component", *measured]
    assert rows[1]["nearest has the label"] == "1.0000" and rows[1]["95% interval"] == "0.9124 to 1.0000"
    assert "nearest has the label" not in layer_rows([last], are_clusters=True)[0]
    assert describe(last).startswith("8") and ", Euclidean silhouette 0.8" in describe(last)
    _, (clustered,) = measure_layers(vectors, [1], labeling(labels, are_clusters=True), "pca", 42)
    assert clustered.separation.silhouette == last.separation.silhouette and clustered.separation.nearest is None
    _, (unlabeled,) = measure_layers(vectors, [1], labeling([None] * 60), "pca", 42)
    assert unlabeled.separation is None and "silhouette" not in layer_rows([unlabeled], are_clusters=False)[0]
