"""Vectors of many dimensions as points in a plane, layer by layer, each layer turned to match the next."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertkit.errors import UnavailableError, pip_install
from bertkit.metrics import Numbers
from bertkit.vectors.vector_files import to_unit_length

LEAST_POINTS = 3
"""Points of a map at least; a plane of fewer shows nothing."""

_UMAP_NEIGHBORS = 15  # of each point, whose distances count; that of the paper


class Plane(NamedTuple):
    """Points in a plane, centered."""

    points: Numbers
    """(points, 2), float64."""
    explained: tuple[float, float] | None
    """Share of the variance that each of the two principal components has; None for UMAP, which has no such shares."""


def project(vectors: Numbers, method: str = "pca", seed: int = 42) -> Plane:
    """Compute points in a plane for vectors, which have length 1 first, so that near ones are near by cosine.

    Args:
        vectors: (points, dimension), at least two.
        method: ``pca``, or ``umap`` (McInnes et al. 2018), which keeps neighbors together and no distances.
        seed: of UMAP.

    Raises:
        UnavailableError: the package umap-learn is not installed.
    """
    vectors = to_unit_length(np.asarray(vectors, dtype=np.float32))
    return _pca(vectors) if method == "pca" else Plane(_umap(vectors, seed), None)


def require(method: str) -> None:
    """Check, before anything is computed, that a method's package is installed.

    Raises:
        UnavailableError: it is not.
    """
    if method != "umap":
        return
    found = importlib.util.find_spec("umap")
    # not even a folder that happens to be called so
    if found is None or found.origin is None:
        what = "--reduce umap needs the package umap-learn"
        raise UnavailableError(what, f"`{pip_install('map')}`, or --reduce pca")


def align(planes: Sequence[Plane]) -> list[Plane]:
    """Return the same planes, each but the last rotated or mirrored to be as near as it can to the one after it.

    Principal components have no sign, and may change their order between layers. Without this, points would jump where
    only the axes differ. This solves the orthogonal Procrustes problem (Schönemann 1966); distances within a plane stay
    as they are.
    """
    aligned = list(planes)
    for number in range(len(aligned) - 2, -1, -1):
        points, goal = aligned[number].points, aligned[number + 1].points
        # (2, 2): the singular vectors of how the axes of both go together
        left, _, right = np.linalg.svd(points.T @ goal)
        aligned[number] = aligned[number]._replace(points=points @ (left @ right))
    return aligned


def _pca(vectors: Numbers) -> Plane:
    """Compute the first two principal components; those that few or flat vectors lack are zeros."""
    from sklearn.decomposition import PCA

    model = PCA(min(2, *vectors.shape), svd_solver="covariance_eigh")
    points = np.zeros((len(vectors), 2))
    explained = np.zeros(2)
    with np.errstate(invalid="ignore", divide="ignore"):  # shares of no variance at all
        found = model.fit_transform(vectors.astype(np.float64))
    points[:, : found.shape[1]] = found
    explained[: found.shape[1]] = np.nan_to_num(model.explained_variance_ratio_)
    return Plane(points, (float(explained[0]), float(explained[1])))


def _umap(vectors: Numbers, seed: int) -> Numbers:
    # that a seed means one thread, and what numba has to say
    with warnings.catch_warnings(action="ignore"):
        try:
            from umap import UMAP
        except ImportError as error:
            raise UnavailableError(f"umap-learn cannot be used: {error}", f"`{pip_install('map')}`") from None
        reducer = UMAP(n_neighbors=min(_UMAP_NEIGHBORS, len(vectors) - 1), metric="cosine", random_state=seed)
        points = np.asarray(reducer.fit_transform(vectors), dtype=np.float64)
    return np.asarray(points - points.mean(axis=0))
