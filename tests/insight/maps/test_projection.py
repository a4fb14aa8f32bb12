"""Planes of layers, compared with a plain singular value decomposition and with scipy's Procrustes."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial

from bertkit.errors import UnavailableError
from bertkit.insight.maps.projection import Plane, align, project, require


def make_vectors(rows=40, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)) * [5, 3, 1, 0.5, 0.2, 0.1][:width] + 1


def test_the_plane_is_that_of_a_singular_value_decomposition():
    vectors = make_vectors()
    plane = project(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    left, values, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(plane.points), np.abs(left[:, :2] * values[:2]), atol=1e-5)
    np.testing.assert_allclose(plane.explained, values[:2] ** 2 / (values**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(plane.points.mean(axis=0), 0, atol=1e-6)


@pytest.mark.parametrize("vectors", [np.ones((4, 3)), np.ones((3, 1)), np.zeros((3, 2))], ids=["same", "line", "zero"])
def test_vectors_without_variance_are_one_point(vectors):
    plane = project(vectors)
    assert plane.points.tolist() == [[0, 0]] * len(vectors)
    assert plane.explained == (0, 0)


def test_planes_are_turned_to_the_last_one_and_keep_their_distances():
    points = project(make_vectors()).points
    mirrored = points @ np.array([[0.6, 0.8], [0.8, -0.6]])
    noisy = points[:, ::-1] * 0.3 + np.random.default_rng(1).normal(size=points.shape) * 0.01
    first, second, last = align([Plane(noisy, None), Plane(mirrored, (0.5, 0.25)), Plane(points, None)])
    np.testing.assert_array_equal(last.points, points)
    np.testing.assert_allclose(second.points, points, atol=1e-9)
    assert second.explained == (0.5, 0.25)
    turn, _ = scipy.linalg.orthogonal_procrustes(noisy, points)
    np.testing.assert_allclose(first.points, noisy @ turn, atol=1e-9)
    np.testing.assert_allclose(scipy.spatial.distance.pdist(first.points), scipy.spatial.distance.pdist(noisy))


def test_umap_is_asked_for_neighbors_by_cosine_and_its_points_are_centered(monkeypatch):
    asked = {}

    class UMAP:
        def __init__(self, **options):
            asked.update(options)

        def fit_transform(self, vectors):
            return vectors[:, :2] + 7

    monkeypatch.setitem(
        sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP, __spec__=types.SimpleNamespace(origin="umap.py"))
    )
    require("umap")
    plane = project(make_vectors(rows=5), "umap", seed=3)
    assert asked == {"n_neighbors": 4, "metric": "cosine", "random_state": 3}
    assert plane.explained is None
    np.testing.assert_allclose(plane.points.mean(axis=0), 0, atol=1e-6)


def test_umap_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require("pca")
    for ask in (lambda: require("umap"), lambda: project(make_vectors(), "umap")):
        with pytest.raises(UnavailableError, match=r"pip install .*\[map\]"):
            ask()


@pytest.mark.slow
def test_umap_keeps_groups_together():
    pytest.importorskip("umap")
    vectors = np.repeat(np.eye(2, 8), 30, axis=0) + np.random.default_rng(0).normal(size=(60, 8)) * 0.1
    points = project(vectors, "umap").points
    middles = points[:30].mean(axis=0), points[30:].mean(axis=0)
    nearer = [np.linalg.norm(point - middles[0]) < np.linalg.norm(point - middles[1]) for point in points]
    assert nearer == [True] * 30 + [False] * 30
