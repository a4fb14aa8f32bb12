"""Clusters of vectors, compared with scikit-learn and with the groups that they were drawn from, and their folder."""

from __future__ import annotations

import math
import os
from collections import Counter

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.vectors import clusters as fit
from bertkit.vectors.clusters import (
    NOISE,
    Clustering,
    SavedClusters,
    Topic,
    check_same_vectors,
    choose_count,
    find_centroids,
    find_examples,
    find_words,
    fit_clusters,
    load_clusters,
    save_clusters,
)
from bertkit.vectors.vector_files import to_unit_length

SIZES = (60, 40, 30)


def draw(sizes=SIZES, dimension=24, seed=0):
    """Draw vectors around one direction per group, and return them with their groups, shuffled."""
    random = np.random.default_rng(seed)
    centers = random.standard_normal((len(sizes), dimension)) * 3
    groups = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return (centers[groups] + random.standard_normal((len(groups), dimension)) * 0.5).astype(np.float32), groups


@pytest.mark.parametrize("method", ["kmeans", "hdbscan"])
def test_groups_are_found_numbered_by_size_and_new_rows_assigned(method):
    vectors, groups = draw()
    clustering, labels = fit_clusters(vectors, method, 3)
    assert adjusted_rand_score(groups, labels) == 1
    assert np.bincount(labels).tolist() == list(SIZES)
    np.testing.assert_array_equal(clustering.assign(vectors), labels)
    near = vectors + 0.05 * np.random.default_rng(1).standard_normal(vectors.shape).astype(np.float32)
    np.testing.assert_array_equal(clustering.assign(near), labels)


def test_kmeans_is_that_of_scikit_learn_whatever_the_number_of_threads():
    vectors = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)
    unit = to_unit_length(vectors)
    with threadpool_limits(limits=1):
        expected = KMeans(7, n_init=3, random_state=5).fit(unit)
    clustering, labels = fit_clusters(vectors, "kmeans", 7, seed=5)
    assert adjusted_rand_score(expected.labels_, labels) == 1
    np.testing.assert_array_equal(clustering.assign(vectors), labels)
    np.testing.assert_array_equal(fit_clusters(vectors, "kmeans", 7, seed=5)[1], labels)


def test_the_rest_of_many_rows_joins_the_nearest(monkeypatch):
    monkeypatch.setattr(fit, "_MAX_COMPARED", 50)
    vectors, groups = draw()
    _, labels = fit_clusters(vectors, "hdbscan", 0, min_size=5)
    assert adjusted_rand_score(groups, labels) == 1


def test_the_number_of_clusters_is_that_of_the_groups():
    count, silhouettes = choose_count(draw(sizes=(30, 30, 30, 30))[0], 42)
    assert count == 4
    assert silhouettes[4] == max(silhouettes.values())


def test_rows_in_no_dense_region_are_in_no_cluster():
    vectors, _ = draw()
    scattered = np.random.default_rng(1).standard_normal((60, vectors.shape[1])).astype(np.float32)
    clustering, labels = fit_clusters(np.concatenate([vectors, scattered]), "hdbscan", 0)
    assert (labels[: len(vectors)] != NOISE).mean() > 0.9
    assert (labels[len(vectors) :] == NOISE).mean() > 0.9
    np.testing.assert_array_equal(clustering.assign(scattered), labels[len(vectors) :])
    with pytest.raises(DataError, match="no region is dense enough"):
        fit_clusters(vectors, "hdbscan", 0, min_size=100)


def test_more_clusters_than_vectors_are_refused():
    vectors = np.repeat(draw()[0][:2], 4, axis=0)
    with pytest.raises(UsageError, match="--clusters 3, but there are 2 different vectors"):
        fit_clusters(vectors, "kmeans", 3)
    with pytest.raises(DataError, match="2 different vectors are too few"):
        choose_count(vectors, 42)


def test_a_centroid_is_the_mean_direction():
    vectors = np.array([[1, 0], [0, 3], [5, 5]], dtype=np.float32)
    np.testing.assert_allclose(find_centroids(vectors, np.array([0, 0, NOISE])), [[0.5**0.5, 0.5**0.5]], rtol=1e-6)


TEXTS = ["the cat sees the dog", "the dog, the cat!", "the ship sails", "a ship in the sea", "zebra"]
LABELS = np.array([0, 0, 1, 1, -1])


def by_hand(cluster):
    """Class-based TF-IDF in plain loops."""
    counts = [Counter(), Counter()]
    for text, label in zip(TEXTS[:4], LABELS, strict=False):
        counts[label].update(word.strip(",!") for word in text.split() if len(word.strip(",!")) > 1)
    totals, other = counts[0] + counts[1], counts[1 - cluster]
    mean = totals.total() / 2
    weights = {}
    for word, count in counts[cluster].items():
        share = count / counts[cluster].total()
        if share >= 2 * other[word] / other.total():
            weights[word] = math.sqrt(share) * math.log(1 + mean / totals[word])
    return sorted(weights, key=lambda word: (-weights[word], word))


def test_words_are_those_of_the_formula_without_words_of_every_cluster():
    words = find_words(TEXTS, LABELS)
    assert words == [by_hand(0), by_hand(1)]
    assert words[0][:2] == ["cat", "dog"]
    assert "the" not in words[1]
    assert "zebra" not in words[0] + words[1]


def test_texts_without_words_have_none():
    assert find_words(["!", "?"], np.array([0, 1])) == [[], []]


def test_examples_are_the_nearest_with_different_texts():
    vectors = np.array([[1, 0], [0.9, 0.1], [1, 0], [0, 1], [0.5, 0.5], [0.6, 0.4]], dtype=np.float32)
    labels = np.array([0, 0, 0, 1, 0, 0])
    found = find_examples(vectors, labels, np.eye(2, dtype=np.float32), ["a", "b", "a", "c", "d", "e"])
    assert found == [[0, 1, 5], [3]]


FACTS = {
    "method": "kmeans",
    "model": "m",
    "prompt": None,
    "dimension": 2,
    "vectors": {"model": "abc", "pooling": ["mean"]},
}


def save(folder):
    clustering = Clustering(np.eye(2, dtype=np.float32), np.arange(2), np.ones((2, 2), dtype=np.float32))
    saved = SavedClusters(clustering, [Topic(0, 3, ["cat"], ["The cat."])], FACTS)
    folder.mkdir()
    save_clusters(folder, saved)
    return saved


def test_what_is_saved_is_read_back(tmp_path):
    saved = save(tmp_path / "topics")
    read = load_clusters(tmp_path / "topics")
    assert (read.topics, read.settings) == (saved.topics, FACTS)
    np.testing.assert_array_equal(read.clustering.components, saved.clustering.components)


def test_whoever_may_read_new_files_may_read_the_clusters(tmp_path):
    before = os.umask(0o027)
    try:
        save(tmp_path / "topics")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "topics").iterdir()} == {0o640}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("clusters.json", None, "no clusters in this folder"),
        ("clusters.json", b"{", "the clusters are damaged"),
        ("clusters.json", b'{"format": 99, "topics": []}', "clusters of format 99, where this bertkit reads 2"),
        ("clusters.safetensors", b"damaged", r"the clusters are damaged \(.*clusters\.safetensors\)"),
        ("clusters.safetensors", None, "the clusters are damaged"),
    ],
)
def test_a_damaged_folder_is_refused(name, content, message, tmp_path):
    save(tmp_path / "topics")
    file = tmp_path / "topics" / name
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load_clusters(tmp_path / "topics")


def test_one_changed_letter_of_the_manifest_is_noticed(tmp_path):
    save(tmp_path / "topics")
    file = tmp_path / "topics" / "clusters.json"
    file.write_text(file.read_text().replace("kmeans", "kmeanz"))
    with pytest.raises(ModelError, match=r"the clusters are damaged \(.*clusters\.json\)"):
        load_clusters(tmp_path / "topics")


@pytest.mark.parametrize(
    ("described", "dimension", "message"),
    [
        ({"model": "xyz", "pooling": ["mean"]}, None, "made with another model"),
        ({"model": "abc", "pooling": ["cls"]}, None, "made with another pooling"),
        (None, 3, "vectors of dimension 3, and clusters of 2"),
    ],
)
def test_vectors_of_another_model_are_refused(described, dimension, message, tmp_path):
    vectors = None if dimension is None else np.zeros((1, dimension), dtype=np.float32)
    with pytest.raises(ModelError, match=message):
        check_same_vectors(save(tmp_path / "topics"), described, vectors, tmp_path)
