"""Parts of an output as tables of Arrow: the vectors of some rows with their ids; see `bertkit.storage.parts`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.metrics import Numbers
from bertkit.storage.parts import read_part, write_part

if TYPE_CHECKING:
    import pyarrow

    from bertkit.vectors.embedding.units import UnitVectors


VECTOR = "embedding"


def write_vectors(file: Path, ids: Sequence[Any], result: UnitVectors) -> None:
    """Write the part with the vectors of some rows and their ids."""
    import numpy as np
    import pyarrow

    vectors = np.ascontiguousarray(result.vectors, dtype=np.float32)
    columns = {"id": _ids([ids[row] for row in result.rows])}
    columns |= {name: pyarrow.array(list(values)) for name, values in result.columns.items()}
    columns[VECTOR] = vector_column(vectors)
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table(columns)
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    write_part(file, sink.getvalue().to_pybytes())


def read_parts(files: Sequence[Path]) -> Iterator[pyarrow.Table]:
    """Yield the table of each part that has vectors; they are mapped, not in memory.

    Raises:
        ResourceError: one is damaged. It is deleted, so that the next process computes it again.
    """
    import pyarrow

    for file in files:
        table = pyarrow.ipc.open_file(pyarrow.BufferReader(read_part(file))).read_all()
        if table.num_rows:
            yield table


def vectors_of(table: pyarrow.Table) -> Numbers:
    """Return the vectors of a part, float32 of shape (vectors, dimension)."""
    column = table.column(VECTOR).combine_chunks()
    vectors: Numbers = column.flatten().to_numpy().reshape(len(column), -1)
    return vectors


def vector_column(vectors: Numbers) -> pyarrow.Array:
    """Return vectors of shape (vectors, dimension) as an Arrow column of lists of a fixed size."""
    import pyarrow

    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), max(1, vectors.shape[1]))


def _ids(values: Sequence[Any]) -> pyarrow.Array:
    """Return ids as a column of whole numbers where all of them are, else of text."""
    import pyarrow

    if all(isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63 for value in values):
        return pyarrow.array(values, type=pyarrow.int64())
    return pyarrow.array([str(value) for value in values])
