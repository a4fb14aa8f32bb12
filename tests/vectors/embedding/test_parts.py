"""Parts with vectors: read as they were written."""

from __future__ import annotations

import numpy as np

from bertkit.vectors.embedding.parts import read_parts, vectors_of, write_vectors
from bertkit.vectors.embedding.units import UnitVectors

VECTORS = np.eye(3, 2, dtype=np.float32)


def test_vectors_are_read_with_their_ids(tmp_path):
    for ids, read in (["abc", ["a", "b", "c"]], [[1, 2, 3], [1, 2, 3]], [[1, 2, 2**70], ["1", "2", str(2**70)]]):
        write_vectors(tmp_path / "0-a.part", ids, UnitVectors(VECTORS, range(3)))
        (table,) = read_parts([tmp_path / "0-a.part"])
        assert table.column("id").to_pylist() == read
        np.testing.assert_array_equal(vectors_of(table), VECTORS)
