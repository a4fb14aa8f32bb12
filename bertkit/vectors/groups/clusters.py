"""Vectors to clusters by k-means, agglomerative clustering or HDBSCAN, and new vectors to the clusters of old ones.

Vectors have length 1 before they are compared, so that the nearest by distance is the nearest by cosine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.errors import DataError, UsageError
from bertkit.metrics.linear import draw_rows
from bertkit.progress import Progress, log, stage
from bertkit.vectors.embedding.quantize import to_unit_length
from bertkit.vectors.groups.stored import Matrix

NOISE = -1
"""The cluster of rows that are in none."""

_STARTS = 3  # of k-means, of which the best is kept
_MAX_COMPARED = 10_000  # rows that the two methods fit that compare all pairs
_DIMENSIONS = 16  # that HDBSCAN finds dense regions in: in hundreds of them, nothing is dense
_SAMPLE = 4000  # rows that the number of clusters is chosen by
_MAX_COUNT = 50  # the highest number of clusters that is tried


Labels = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Clustering:
    """Clusters, numbered from 0 by size, and what assigns vectors to them: each gets the label of the nearest point."""

    points: Matrix
    """The centroids of k-means; for the other methods, which have none, the vectors that they were fitted on."""
    point_labels: Labels
    components: Matrix | None = None
    """Principal components that vectors are projected on before they are compared with the points."""

    def assign(self, vectors: Matrix) -> Labels:
        """Return the cluster of each vector, ``NOISE`` for those in none."""
        from sklearn.metrics import pairwise_distances_argmin

        projected = _project_vectors(to_unit_length(vectors), self.components)
        return np.asarray(self.point_labels[pairwise_distances_argmin(projected, self.points)])


def fit_clusters(
    vectors: Matrix, method: str, count: int, *, min_size: int = 10, seed: int = 42
) -> tuple[Clustering, Labels]:
    """Find clusters; the same vectors and seed give the same ones, whatever the number of threads.

    Args:
        vectors: float32, (rows, dimension).
        method: ``kmeans``, ``agglomerative`` or ``hdbscan``.
        count: the number of clusters; HDBSCAN finds its own.
        min_size: the fewest rows of a cluster of HDBSCAN.
        seed: of the starts of k-means and of samples.

    Returns:
        the clustering, and the cluster of each row.

    Raises:
        UsageError: more clusters than different vectors.
        DataError: HDBSCAN finds no cluster.
    """
    vectors = to_unit_length(vectors)
    if method == "kmeans":
        labels, points = _fit_kmeans(vectors, count, seed)
        by_size = _by_size(labels)
        return Clustering(points[np.argsort(by_size)], np.arange(len(points))), by_size[labels]
    chosen = draw_rows(len(vectors), _MAX_COMPARED, seed)
    if len(chosen) < len(vectors):
        log.info(f"{method} compares all pairs: fitted on {len(chosen):,} rows, the others join the nearest of them")
    components = _find_components(vectors[chosen]) if method == "hdbscan" else None
    points = _project_vectors(vectors[chosen], components)
    labels = _fit_hdbscan(points, min_size) if method == "hdbscan" else _fit_agglomerative(points, count)
    if (labels == NOISE).all():
        raise DataError("no region is dense enough to be a cluster", "try a lower --min-size, or --method kmeans")
    labels = np.append(_by_size(labels), NOISE)[labels]  # the last one is what -1 selects
    clustering = Clustering(points, labels, components)
    return clustering, labels if len(chosen) == len(vectors) else clustering.assign(vectors)


def choose_count(vectors: Matrix, method: str, seed: int, progress: Progress) -> tuple[int, dict[int, float]]:
    """Choose the number of clusters with the highest silhouette (Rousseeuw 1987) on a sample of the rows.

    Returns:
        that number, and number -> mean silhouette, from -1 to 1, for each that was tried.
    """
    from sklearn.metrics import silhouette_score

    sample = to_unit_length(vectors[draw_rows(len(vectors), _SAMPLE, seed)])
    different = len(np.unique(sample, axis=0))
    most = min(_MAX_COUNT, different - 1, max(2, math.isqrt(len(vectors))))
    counts = sorted({min(most, round(2 * 1.3**step)) for step in range(14)})
    if different < 3:
        raise DataError(f"{different} different vectors are too few for clusters", "give more rows")
    silhouettes = {}
    with stage(progress, "choosing the number of clusters", len(counts)):
        for done, count in enumerate(counts, 1):
            labels = _fit_kmeans(sample, count, seed)[0] if method == "kmeans" else _fit_agglomerative(sample, count)
            silhouettes[count] = float(silhouette_score(sample, labels))
            progress.update(done, {"clusters": count, "silhouette": silhouettes[count]})
    return max(silhouettes, key=lambda count: silhouettes[count]), silhouettes


def find_centroids(vectors: Matrix, labels: Labels) -> Matrix:
    """Return the mean direction of each cluster's vectors, (clusters, dimension), of length 1."""
    vectors = to_unit_length(vectors)
    means = [vectors[labels == label].mean(axis=0) for label in range(labels.max() + 1)]
    return to_unit_length(np.stack(means).astype(np.float32))


def _fit_kmeans(vectors: Matrix, count: int, seed: int) -> tuple[Labels, Matrix]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    _refuse_too_many(vectors, count)
    # in one thread: with several, the order of its sums, and so its rounding, is left to chance
    with threadpool_limits(limits=1, user_api="openmp"):
        model = KMeans(count, n_init=_STARTS, random_state=seed).fit(vectors)
    return model.labels_.astype(np.int64), model.cluster_centers_.astype(np.float32)


def _fit_agglomerative(vectors: Matrix, count: int) -> Labels:
    from sklearn.cluster import AgglomerativeClustering

    _refuse_too_many(vectors, count)
    return np.asarray(AgglomerativeClustering(count, linkage="ward").fit(vectors).labels_, dtype=np.int64)


def _fit_hdbscan(points: Matrix, min_size: int) -> Labels:
    from sklearn.cluster import HDBSCAN

    model = HDBSCAN(min_cluster_size=min_size, copy=True).fit(points.astype(np.float64))
    return np.asarray(model.labels_, dtype=np.int64)


def _refuse_too_many(vectors: Matrix, count: int) -> None:
    if count > len(vectors) or (count > 1 and count > len(np.unique(vectors, axis=0))):
        different = f"{len(np.unique(vectors, axis=0)):,} different vectors"
        raise UsageError(f"--clusters {count}, but there are {different}", "ask for fewer clusters")


def _find_components(vectors: Matrix) -> Matrix | None:
    """Return the first principal components, (dimension, few); None where there are no more dimensions than that."""
    from sklearn.decomposition import PCA

    if min(vectors.shape) <= _DIMENSIONS:
        return None
    components: Matrix = PCA(_DIMENSIONS, svd_solver="covariance_eigh").fit(vectors).components_.T
    return components.astype(np.float32)


def _project_vectors(vectors: Matrix, components: Matrix | None) -> Matrix:
    """Project vectors on components; they are not centered, since distances do not see where the origin is."""
    return vectors if components is None else vectors @ components


def _by_size(labels: Labels) -> Labels:
    """Return label -> its rank by size, the largest first, and of equal ones that of the earliest row."""
    _, first, sizes = np.unique(labels[labels != NOISE], return_index=True, return_counts=True)
    return np.argsort(np.lexsort((first, -sizes)))
