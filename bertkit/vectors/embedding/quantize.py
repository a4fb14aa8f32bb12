"""Vectors in fewer bytes: fewer dimensions, half precision, a byte or a bit per dimension."""

from __future__ import annotations

import numpy as np

from bertkit.errors import UsageError
from bertkit.metrics import Numbers

_LEVELS = 255  # steps between the lowest and the highest value of a byte


def truncate(vectors: Numbers, dimension: int | None, *, is_normal: bool) -> Numbers:
    """Keep the first components of vectors (vectors, width), or all; if they had length 1, they have it again.

    Raises:
        UsageError: there are fewer.
    """
    if dimension is None:
        return vectors
    if dimension > vectors.shape[1]:
        raise UsageError(f"a dimension of {dimension:,}", f"the model's vectors have {vectors.shape[1]:,}")
    return to_unit_length(vectors[:, :dimension]) if is_normal else vectors[:, :dimension]


def to_unit_length(vectors: Numbers) -> Numbers:
    """Return vectors (vectors, width) of length 1, so that their products are cosines; one of zeros stays as it is."""
    lengths: Numbers = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def find_ranges(vectors: Numbers, before: Numbers | None = None) -> Numbers:
    """Find the lowest and the highest value of each dimension, (2, dimension), also of those found `before`."""
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    if before is None:
        return ranges
    return np.stack([np.minimum(ranges[0], before[0]), np.maximum(ranges[1], before[1])])


def to_int8(vectors: Numbers, ranges: Numbers) -> Numbers:
    """Round vectors (vectors, dimension) to 256 levels between the ends of each dimension's range."""
    levels: Numbers = np.rint((vectors - ranges[0]) / _steps(ranges)) - 128
    return levels.clip(-128, 127).astype(np.int8)


def from_int8(levels: Numbers, ranges: Numbers) -> Numbers:
    """Undo `to_int8`: float32 vectors that are off by half a step, 1/510 of the range, at most.

    >>> ranges = np.array([[-1.0, 0.0], [1.0, 0.5]], dtype=np.float32)
    >>> from_int8(to_int8(np.array([[1.0, 0.25]]), ranges), ranges).round(2)
    array([[1.  , 0.25]], dtype=float32)
    """
    steps = _steps(ranges).astype(np.float32)
    return (levels.astype(np.float32) + 128) * steps + np.asarray(ranges[0], dtype=np.float32)


def to_bits(vectors: Numbers) -> Numbers:
    """Keep whether each value is positive, 8 in a byte, the first in its highest bit: (vectors, dimension / 8)."""
    return np.packbits(vectors > 0, axis=1)


def _steps(ranges: Numbers) -> Numbers:
    """Compute the step between two levels of each dimension; 1 where all values are equal."""
    width = ranges[1] - ranges[0]
    return np.where(width > 0, width, _LEVELS) / _LEVELS
