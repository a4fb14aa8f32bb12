"""Clusters of vectors by k-means or HDBSCAN: fit, save and load them, assign new vectors, and find their topics.

Vectors are scaled to length 1 before they are compared, so that the nearest by distance is the nearest by cosine. The
topic of a cluster is the words that set it apart from the others, and its most typical texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.metrics.linear import draw_rows
from bertkit.progress import get_progress, log, stage
from bertkit.storage.files import make_ignored_folder
from bertkit.storage.fingerprints import describe_file, is_complete, read_with_checksum, write_with_checksum
from bertkit.vectors.vector_files import Matrix, to_unit_length

NOISE = -1
"""Label of rows that are not in a cluster, as in scikit-learn."""

MANIFEST = "clusters.json"
_TENSORS = "clusters.safetensors"
_VERSION = 2

_STARTS = 3  # runs of k-means; the best one is kept
_MAX_COMPARED = 10_000  # rows that HDBSCAN is fitted on; it compares all pairs
_DIMENSIONS = 16  # dimensions for HDBSCAN: with hundreds of dimensions, no region is dense
_SAMPLE = 4000  # rows on which the number of clusters is chosen
_MAX_COUNT = 50  # maximum number of clusters that is tried
_LIFT = 2.0  # minimum frequency of a word in its cluster, relative to the other clusters
_EXAMPLES = 3  # texts per cluster

Labels = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Clustering:
    """Labeled points; a vector gets the label of the nearest point. Label 0 is the largest cluster, and so on."""

    points: Matrix
    """Centroids of k-means, or the vectors that HDBSCAN was fitted on. Shape: (points, dimension)."""
    point_labels: Labels
    """Cluster of each point. Shape: (points,)."""
    components: Matrix | None = None
    """Principal components on which vectors are projected before the comparison with the points."""

    def assign(self, vectors: Matrix) -> Labels:
        """Return the cluster of each vector, or ``NOISE`` if its nearest point is in no cluster."""
        from sklearn.metrics import pairwise_distances_argmin

        projected = _project_vectors(to_unit_length(vectors), self.components)
        return np.asarray(self.point_labels[pairwise_distances_argmin(projected, self.points)])


def fit_clusters(
    vectors: Matrix, method: str, count: int, *, min_size: int = 10, seed: int = 42
) -> tuple[Clustering, Labels]:
    """Find clusters; the same vectors and seed give the same clusters with any number of threads.

    Args:
        vectors: float32, (rows, dimension).
        method: ``kmeans`` or ``hdbscan``.
        count: Number of clusters for k-means; HDBSCAN finds the number itself.
        min_size: Minimum number of rows per cluster, for HDBSCAN.
        seed: Random seed of k-means and of samples.

    Returns:
        The clustering, and the cluster of each row.

    Raises:
        UsageError: If there are more clusters than different vectors.
        DataError: If HDBSCAN finds no cluster.
    """
    from sklearn.cluster import HDBSCAN

    vectors = to_unit_length(vectors)
    if method == "kmeans":
        labels, points = _fit_kmeans(vectors, count, seed)
        ranks = _rank_by_size(labels)
        # Centroids in the order of their ranks; argsort inverts a permutation.
        return Clustering(points[np.argsort(ranks)], np.arange(len(points))), ranks[labels]
    sample = draw_rows(len(vectors), _MAX_COMPARED, seed)
    if len(sample) < len(vectors):
        log.info(f"{method} compares all pairs: fitted on {len(sample):,} rows, each other row joins the nearest")
    components = _find_components(vectors[sample])
    points = _project_vectors(vectors[sample], components)
    labels = HDBSCAN(min_cluster_size=min_size, copy=True).fit(points.astype(np.float64)).labels_.astype(np.int64)
    if (labels == NOISE).all():
        raise DataError("no region is dense enough to be a cluster", "try a lower --min-size, or --method kmeans")
    # The label of noise, -1, selects the last element. With ranks [1, 0], the labels [0, -1, 1] become [1, -1, 0].
    labels = np.append(_rank_by_size(labels), NOISE)[labels]
    clustering = Clustering(points, labels, components)
    return clustering, labels if len(sample) == len(vectors) else clustering.assign(vectors)


def choose_count(vectors: Matrix, seed: int) -> tuple[int, dict[int, float]]:
    """Choose the number of clusters of k-means with the highest silhouette (Rousseeuw 1987) on a sample of the rows.

    Returns:
        Number of clusters, and the mean silhouette (-1 to 1) of each number that was tried.
    """
    from sklearn.metrics import silhouette_score

    sample = to_unit_length(vectors[draw_rows(len(vectors), _SAMPLE, seed)])
    different = len(np.unique(sample, axis=0))
    max_count = min(_MAX_COUNT, different - 1, max(2, math.isqrt(len(vectors))))
    # 2, 3, 4, 6, 7, 10, 13, ..., 47: each number is about 30% larger than the one before, because one cluster more
    # matters less if there are many.
    counts = sorted({min(max_count, round(2 * 1.3**step)) for step in range(14)})
    if different < 3:
        raise DataError(f"{different} different vectors are too few for clusters", "give more rows")
    silhouettes = {}
    with stage("choosing the number of clusters", len(counts)):
        for done, count in enumerate(counts, 1):
            labels, _ = _fit_kmeans(sample, count, seed)
            silhouettes[count] = float(silhouette_score(sample, labels))
            get_progress().update(done, {"clusters": count, "silhouette": silhouettes[count]})
    return max(silhouettes, key=lambda count: silhouettes[count]), silhouettes


def find_centroids(vectors: Matrix, labels: Labels) -> Matrix:
    """Return the mean direction of each cluster's vectors, (clusters, dimension), of length 1."""
    vectors = to_unit_length(vectors)
    means = [vectors[labels == label].mean(axis=0) for label in range(labels.max() + 1)]
    return to_unit_length(np.stack(means).astype(np.float32))


def _fit_kmeans(vectors: Matrix, count: int, seed: int) -> tuple[Labels, Matrix]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if count > len(vectors) or (count > 1 and count > len(np.unique(vectors, axis=0))):
        different = f"{len(np.unique(vectors, axis=0)):,} different vectors"
        raise UsageError(f"--clusters {count}, but there are {different}", "request fewer clusters")
    # Use one thread. With several, the order of the sums, and so their rounding, differs from run to run.
    with threadpool_limits(limits=1, user_api="openmp"):
        model = KMeans(count, n_init=_STARTS, random_state=seed).fit(vectors)
    return model.labels_.astype(np.int64), model.cluster_centers_.astype(np.float32)


def _find_components(vectors: Matrix) -> Matrix | None:
    """Return principal components, (dimension, 16), or None for 16 or fewer rows or dimensions."""
    from sklearn.decomposition import PCA

    if min(vectors.shape) <= _DIMENSIONS:
        return None
    components: Matrix = PCA(_DIMENSIONS, svd_solver="covariance_eigh").fit(vectors).components_.T
    return components.astype(np.float32)


def _project_vectors(vectors: Matrix, components: Matrix | None) -> Matrix:
    """Project vectors on components; they are not centered, because distances do not depend on the origin."""
    return vectors if components is None else vectors @ components


def _rank_by_size(labels: Labels) -> Labels:
    """Return the rank of each label by the size of its cluster, (labels,), from 0 for the largest.

    Of clusters with equal sizes, the cluster of the earliest row comes first.

    >>> _rank_by_size(np.array([0, 1, 1, 2, 2, 2])).tolist()
    [2, 1, 0]
    """
    _, first, sizes = np.unique(labels[labels != NOISE], return_index=True, return_counts=True)
    # lexsort sorts by its last key first and returns the labels by rank; argsort inverts this permutation.
    return np.argsort(np.lexsort((first, -sizes)))


def find_words(texts: Sequence[str], labels: Labels, words: int = 10) -> list[list[str]]:
    """Return the words of each cluster with the highest class-based TF-IDF (Grootendorst 2022, section 3.3).

    A cluster counts as one document. The weight of a word in a cluster is sqrt(tf) * log(1 + A / f): tf is its fraction
    of the cluster's words, A the mean number of words per cluster, and f its occurrences in all clusters. The root is
    BERTopic's ``reduce_frequent_words``. A word must be at least twice as frequent as in the other clusters. This
    removes stop words without a list of them for each language.
    """
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import CountVectorizer

    rows = np.flatnonzero(labels != NOISE)
    count = int(labels.max()) + 1
    vectorizer = CountVectorizer()
    try:
        row_counts = vectorizer.fit_transform(texts[row] for row in rows.tolist())
    except ValueError:  # scikit-learn rejects an empty vocabulary: no text has a word.
        return [[] for _ in range(count)]
    # (clusters, rows) with a 1 for the cluster of each row, so that the product sums the rows of each cluster.
    membership = csr_matrix((np.ones(len(rows)), (labels[rows], np.arange(len(rows)))), shape=(count, len(rows)))
    cluster_counts = (membership @ row_counts).tocsr()  # (clusters, words)
    totals = np.asarray(cluster_counts.sum(axis=0)).ravel()
    rarity = np.log1p(cluster_counts.sum() / count / totals)
    names = vectorizer.get_feature_names_out()
    cluster_words = []
    for cluster in range(count):
        # A sparse row: only the words that occur in this cluster, as their counts and their indices.
        counts, indices = cluster_counts[cluster].data, cluster_counts[cluster].indices
        total = counts.sum()
        fractions, other_fractions = counts / total, (totals[indices] - counts) / max(totals.sum() - total, 1)
        weights = np.sqrt(fractions) * rarity[indices]
        is_typical = fractions >= _LIFT * other_fractions
        # Weights are negated, so that words with equal weights are in alphabetical order.
        strongest = sorted(zip(-weights[is_typical], names[indices][is_typical], strict=True))[:words]
        cluster_words.append([str(word) for _, word in strongest])
    return cluster_words


def find_examples(vectors: Matrix, labels: Labels, centroids: Matrix, texts: Sequence[str]) -> list[list[int]]:
    """Return the rows nearest to the centroid of each cluster, the nearest first, without repeated texts."""
    examples = []
    for cluster, centroid in enumerate(centroids):
        rows = np.flatnonzero(labels == cluster)
        cosines = to_unit_length(vectors[rows]) @ centroid
        nearest: dict[str, int] = {}
        for row in rows[np.argsort(-cosines, kind="stable")]:
            nearest.setdefault(texts[row], int(row))
            if len(nearest) == _EXAMPLES:
                break
        examples.append(list(nearest.values()))
    return examples


@dataclass(frozen=True)
class Topic:
    """Size, words and examples of a cluster."""

    cluster: int
    rows: int
    words: list[str]
    """Words that set it apart from the other clusters, the strongest first."""
    examples: list[str]
    """Texts nearest to its centroid."""


@dataclass(frozen=True)
class SavedClusters:
    """Clusters that rows can be assigned to."""

    clustering: Clustering
    topics: list[Topic]
    settings: dict[str, Any]
    """Settings; ``vectors`` is the result of `Embedder.describe`, or None for vectors that were read from a file."""


def save_clusters(folder: Path, clusters: SavedClusters) -> None:
    """Write clusters into a new folder. The manifest is written last, and has the checksum of the tensors."""
    from safetensors.numpy import save

    make_ignored_folder(folder)
    clustering = clusters.clustering
    tensors = {"points": clustering.points, "point_labels": clustering.point_labels}
    if clustering.components is not None:
        tensors["components"] = clustering.components
    # `save_file` of safetensors would write files that only their owner can read.
    (folder / _TENSORS).write_bytes(save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}))
    topics = [asdict(topic) for topic in clusters.topics]
    content = {
        "format": _VERSION,
        **clusters.settings,
        "tensors": describe_file(folder / _TENSORS),
        "topics": topics,
    }
    write_with_checksum(folder / MANIFEST, content)


def load_clusters(folder: Path) -> SavedClusters:
    """Read a folder of clusters.

    Raises:
        ModelError: If it has no clusters, or they are damaged.
    """
    from safetensors.numpy import load_file

    def damage_error(name: str) -> ModelError:
        remedy = "write the clusters again with `bertkit cluster --save`"
        return ModelError("the clusters are damaged", remedy, file=folder / name)

    settings = read_with_checksum(folder / MANIFEST, damage_error(MANIFEST), form=("clusters", _VERSION))
    if settings is None:
        raise ModelError("no clusters in this folder", "name a folder of `bertkit cluster --save`", file=folder)
    try:
        del settings["format"]
        topics = [Topic(**topic) for topic in settings.pop("topics")]
        if not is_complete(folder / _TENSORS, settings.pop("tensors")):
            raise damage_error(_TENSORS)
        return SavedClusters(Clustering(**load_file(folder / _TENSORS)), topics, settings)
    except (KeyError, TypeError):  # The checksum matches, but a field is missing or unknown.
        raise damage_error(MANIFEST) from None


def check_same_vectors(
    clusters: SavedClusters, described: dict[str, Any] | None, vectors: Matrix | None, folder: Path
) -> None:
    """Check that vectors and clusters have the same model and dimension.

    Raises:
        ModelError: If they differ.
    """
    if described is not None and clusters.settings["vectors"] is not None and described != clusters.settings["vectors"]:
        names = [name for name, value in described.items() if value != clusters.settings["vectors"].get(name)]
        message = f"the clusters were made with another {' and '.join(names)}"
        raise ModelError(message, f"use the model {clusters.settings['model']} as it was", file=folder)
    if vectors is not None and vectors.shape[1] != clusters.settings["dimension"]:
        message = f"vectors of dimension {vectors.shape[1]}, and clusters of {clusters.settings['dimension']}"
        raise ModelError(message, "use the model that the clusters were made with", file=folder)
