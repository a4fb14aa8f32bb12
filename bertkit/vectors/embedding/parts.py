"""Vectors that are computed part by part: each part is a file that is whole or not there, and is computed once.

The folder of the parts is beside the output, and is deleted once the output is complete. It says which model and
options the vectors are of. The name of a part has a digest of its rows, so that a part of other rows is never taken.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ResourceError, UsageError
from bertkit.metrics import Numbers
from bertkit.progress import log
from bertkit.storage.files import write_bytes
from bertkit.storage.fingerprints import with_digest, without_digest
from bertkit.storage.records import read_signed, write_signed

if TYPE_CHECKING:
    import pyarrow

    from bertkit.vectors.embedding.units import UnitVectors


VECTOR = "embedding"

_PLAN = "plan.json"


class PartFolder:
    """The parts of one output; only one process may use it, or the processes of one launch.

    Args:
        output: the file that the parts are for.
        identity: all that the vectors depend on but the rows, as JSON values.
    """

    def __init__(self, output: Path, identity: Mapping[str, Any]) -> None:
        self.output, self.identity = output, dict(identity)
        self.folder = output.with_name(f".{output.name}.parts")

    def open(self, *, fresh: bool) -> str | None:
        """Return the precision that parts of an interrupted process were computed in; None where there are none.

        Raises:
            UsageError: they are of another model or of other options.
        """
        if fresh or not self.has_parts():
            self.delete()
        try:
            plan = read_signed(self.folder / _PLAN, ResourceError("damaged"))
        except ResourceError:
            log.info(f"{self.folder / _PLAN} is damaged, so all vectors are computed anew")
            plan = None
        if plan is None:
            self.delete()
            return None
        before, precision = plan["identity"], str(plan["precision"])
        changed = [name for name in {**before, **self.identity} if before.get(name) != self.identity.get(name)]
        if changed:
            options = " and ".join(f"{name} {before.get(name)}" for name in changed)
            what = f"an interrupted command with {options} has left parts of this output"
            raise UsageError(what, "repeat that command, or --fresh starts over", file=self.output)
        return precision

    def begin(self, precision: str) -> None:
        """Note what the parts are of, before the first is written."""
        self.folder.mkdir(exist_ok=True)
        write_signed(self.folder / _PLAN, {"identity": self.identity, "precision": precision})

    def file(self, number: int, digest: str) -> Path:
        """Return the file of a part, which is there once its vectors are."""
        return self.folder / f"{number:06}-{digest[:16]}.arrow"

    def has_parts(self) -> bool:
        """Tell whether a part is there."""
        return next(self.folder.glob("*.arrow"), None) is not None

    def delete_if_empty(self) -> None:
        """Delete the folder where nothing was computed."""
        if not self.has_parts():
            self.delete()

    def delete(self) -> None:
        """Delete all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_part(file: Path, ids: Sequence[Any], result: UnitVectors) -> None:
    """Write the vectors of some rows with their ids, whole or not at all; parts of other rows are deleted."""
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
    for other in file.parent.glob(f"{file.name.partition('-')[0]}-*.arrow"):
        other.unlink(missing_ok=True)
    write_bytes(file, with_digest(sink.getvalue().to_pybytes()))


def is_whole(file: Path) -> bool:
    """Tell whether a part is there; one that is damaged is deleted, which is logged."""
    if not file.exists() or _map_part(file) is not None:
        return file.exists()
    log.info(f"{file} is damaged, so its vectors are computed anew")
    file.unlink()
    return False


def read_parts(files: Sequence[Path]) -> Iterator[pyarrow.Table]:
    """Yield the table of each part that has vectors; they are mapped, not in memory.

    Raises:
        ResourceError: one is damaged. It is deleted, so that the next process computes it again.
    """
    import pyarrow

    for file in files:
        if (content := _map_part(file)) is None:
            file.unlink()
            raise ResourceError("the part was damaged, and is deleted", "repeat the command", file=file)
        table = pyarrow.ipc.open_file(pyarrow.BufferReader(content)).read_all()
        if table.num_rows:
            yield table


def _map_part(file: Path) -> Any | None:
    """Map a part into memory; None where it is damaged."""
    import pyarrow

    if not file.stat().st_size:
        return None
    with pyarrow.memory_map(str(file)) as source:
        return without_digest(source.read_buffer())


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
