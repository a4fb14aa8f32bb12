"""A folder of clusters is whole, and of one model."""

from __future__ import annotations

import os

import numpy as np
import pytest

from bertkit.errors import ModelError
from bertkit.vectors.groups.cluster_folder import (
    SavedClusters,
    Topic,
    load_clusters,
    refuse_other_vectors,
    save_clusters,
)
from bertkit.vectors.groups.clusters import Clustering

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
    assert (read.topics, read.facts) == (saved.topics, FACTS)
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
        ("clusters.json", b"{", "cannot be read"),
        ("clusters.json", b'{"format": 99, "topics": []}', "another version"),
        ("clusters.safetensors", b"damaged", "checksum differs"),
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
    with pytest.raises(ModelError, match=r"their checksum differs \(.*clusters\.json\)"):
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
        refuse_other_vectors(save(tmp_path / "topics"), described, vectors, tmp_path)
