"""Vectors in fewer bytes, compared with sentence-transformers' rules written out."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import UsageError
from bertkit.vectors.embedding.quantize import find_ranges, from_int8, to_bits, to_int8, truncate

VECTORS = np.random.default_rng(0).normal(size=(50, 12)).astype(np.float32)


def test_ranges_of_parts_are_those_of_the_whole():
    ranges = find_ranges(VECTORS[20:], find_ranges(VECTORS[:20]))
    np.testing.assert_array_equal(ranges, [VECTORS.min(axis=0), VECTORS.max(axis=0)])


def test_bytes_can_be_undone_to_half_a_step():
    ranges = find_ranges(VECTORS)
    levels = to_int8(VECTORS, ranges)
    assert levels.dtype == np.int8 and levels.min() == -128 and levels.max() == 127
    half_a_step = (ranges[1] - ranges[0]) / 255 / 2
    assert (abs(from_int8(levels, ranges) - VECTORS) <= half_a_step * 1.001).all()


def test_a_dimension_without_a_range_is_kept():
    vectors = np.full((3, 2), 0.5, dtype=np.float32)
    np.testing.assert_array_equal(from_int8(to_int8(vectors, find_ranges(vectors)), find_ranges(vectors)), vectors)


def test_values_beyond_the_ranges_are_the_ends():
    ranges = find_ranges(VECTORS)
    assert set(np.unique(to_int8(ranges * 3 + [[-9], [9]], ranges))) == {-128, 127}


def test_bits_are_signs():
    bits = to_bits(VECTORS)
    assert bits.shape == (50, 2)
    expected = [[int("".join(str(int(value > 0)) for value in line[:8]), 2) for line in VECTORS]]
    np.testing.assert_array_equal(bits[:, 0], expected[0])


def test_the_first_components_have_length_1_again():
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    np.testing.assert_allclose(np.linalg.norm(truncate(unit, 4, is_normal=True), axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(truncate(VECTORS, 4, is_normal=False), VECTORS[:, :4])
    with pytest.raises(UsageError, match="a dimension of 13 - the model's vectors have 12"):
        truncate(VECTORS, 13, is_normal=False)
