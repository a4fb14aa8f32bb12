"""Files of vectors: .npy or .parquet, which `bertkit embed` and other programs write.

`bertkit embed` computes vectors part by part. Each part is a table of Arrow with the vectors of some rows and their ids
(see `bertkit.storage.output_shards`), and all parts are joined at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.errors import DataError, UsageError, did_you_mean
from bertkit.progress import stage
from bertkit.storage.disk import map_npy
from bertkit.storage.files import replace_file, sync_folder, to_json
from bertkit.storage.fingerprints import sync_file
from bertkit.storage.output_shards import read_part, write_part

if TYPE_CHECKING:
    import pyarrow

DTYPES = ("float32", "float16")
VECTOR = "embedding"
"""The column of the vectors."""

Matrix = np.ndarray[Any, np.dtype[np.float32]]
"""Vectors, (rows, dimension)."""

_DAMAGE = (ValueError, OSError, LookupError, TypeError, AttributeError, RuntimeError)
"""Errors that the readers of formats raise for a damaged file."""
_PROPERTIES = ("model", "pooling", "layers", "normalize", "truncate_dim", "max_length", "prompts", "include_prompt")
"""Keys of a description that comparable vectors share."""


def truncate(vectors: np.ndarray, dimension: int | None, *, is_normalized: bool) -> np.ndarray:
    """Keep the first components of vectors (vectors, width), or all; vectors of length 1 get this length again.

    Raises:
        UsageError: If the vectors have fewer components.
    """
    if dimension is None:
        return vectors
    if dimension > vectors.shape[1]:
        raise UsageError(f"a dimension of {dimension:,}", f"the model's vectors have {vectors.shape[1]:,}")
    return to_unit_length(vectors[:, :dimension]) if is_normalized else vectors[:, :dimension]


def to_unit_length(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors (vectors, width) to length 1, so that their products are cosines; zeros remain zeros."""
    lengths: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: np.ndarray = vectors / np.maximum(lengths, 1e-12)
    return unit


def write_vector_part(
    file: Path, ids: Sequence[Any], vectors: np.ndarray, columns: Mapping[str, Sequence[Any]]
) -> None:
    """Write a part: vectors (vectors, dimension), the ids of their rows, and other columns such as their words."""
    import pyarrow

    arrays = {"id": _make_id_column(ids), **{name: pyarrow.array(list(values)) for name, values in columns.items()}}
    arrays[VECTOR] = _make_vector_column(np.ascontiguousarray(vectors, dtype=np.float32))
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table(arrays)
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    write_part(file, sink.getvalue().to_pybytes())


def output_files(output: Path, dtype: str) -> list[Path]:
    """List the files that an output consists of; `output` itself comes last.

    Raises:
        UsageError: If the ending or the dtype is not known.
    """
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype}", did_you_mean(dtype, DTYPES))
    _check_ending(output, f"--output {output}")
    if output.suffix == ".parquet":
        return [output]
    return [output.with_name(f"{output.name}{ending}") for ending in (".rows.jsonl", ".json", "")]


def write_vectors(
    parts: Sequence[Path], output: Path, staging: Path, *, dtype: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Join parts into the files of an output; `output` itself is written last, and marks a complete output.

    Args:
        parts: Files that `write_vector_part` wrote.
        output: A .npy or .parquet file.
        staging: A folder on the same disk, in which files are written before they are moved.
        dtype: One of `DTYPES`.
        about: The model and its options.

    Returns:
        Description of the vectors: `about`, dtype, number and width.

    Raises:
        DataError: If there is no vector.
        ResourceError: If a part is damaged.
    """
    shapes = [vectors.shape for _, vectors in _read_parts(parts)]
    if not shapes:
        raise DataError("the rows have no words", "give rows with text")
    count, width = sum(rows for rows, _ in shapes), shapes[0][1]
    description = {**about, "dtype": dtype, "vectors": count, "width": width}
    staging.mkdir(exist_ok=True)
    files = output_files(output, dtype)
    staged_files = [staging / file.name for file in files]
    if output.suffix == ".parquet":
        _write_parquet(parts, staged_files[0], dtype, description)
    else:
        _write_npy(parts, staged_files, dtype, description)
    # The data must be on disk before the names change; otherwise a power cut could leave an empty file.
    for file in staged_files:
        sync_file(file)
    # Resolve the output, so that a symbolic link remains one. Remove old vectors before their ids are replaced.
    real = output.resolve()
    real.unlink(missing_ok=True)
    for source, target in zip(staged_files, [*files[:-1], real], strict=True):
        replace_file(source, target)
    sync_folder(real.parent)
    return description


def read_vectors(file: Path, rows: int) -> Matrix:
    """Read the vectors of `rows` rows, one per row and in their order, as float32.

    A Parquet file has them in the column ``embedding``; an npy file is one array.

    Raises:
        UsageError: If the file has another ending.
        DataError: If it has no vectors, not one per row, or a number that is not finite.
    """
    _check_ending(file, str(file))
    if not file.is_file():
        raise DataError("no such file", "name the file that `bertkit embed` wrote", file=file)
    with stage("reading vectors"):
        _read_metadata(file)
        try:
            vectors: np.ndarray = _read_parquet(file) if file.suffix == ".parquet" else map_npy(file)
        except _DAMAGE as error:
            raise DataError(f"the vectors cannot be read: {error}", "write the file again", file=file) from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        message = f"an array of {vectors.dtype} with {vectors.ndim} axes, not rows of floating-point numbers"
        raise DataError(message, "write float32 or float16 vectors, one per row", file=file)
    if len(vectors) != rows:
        raise DataError(f"{len(vectors):,} vectors for {rows:,} rows", "give one per row, in the same order", file=file)
    check_finite(vectors, file)
    return vectors.astype(np.float32, copy=False)


def read_description(file: Path) -> dict[str, Any] | None:
    """Return the properties that comparable vectors share, as `bertkit embed` noted them, or None without a note."""
    metadata = _read_metadata(file)
    if metadata is None:
        return None
    names = _PROPERTIES if metadata.get("unit", "text") == "text" else (*_PROPERTIES, "unit")
    return {name: metadata[name] for name in names if name in metadata}


def check_finite(vectors: Matrix, source: object) -> None:
    """Check that all numbers are finite.

    Raises:
        DataError: If one is not; it names the row.
    """
    # A sum is finite only if all its terms are, and sums of float32 cannot overflow in float64. Unlike a mask of all
    # components, it takes little memory.
    wrong = np.flatnonzero(~np.isfinite(vectors.sum(axis=1, dtype=np.float64)))
    if len(wrong):
        message = "a vector with a number that is not finite"
        raise DataError(message, "compute the vectors again", file=source, row=int(wrong[0]) + 1)


def _check_ending(file: Path, name: str) -> None:
    if file.suffix not in (".npy", ".parquet"):
        raise UsageError(f"{name}: unknown ending {file.suffix!r}", "name a .npy or .parquet file")


def _read_parts(files: Sequence[Path]) -> Iterator[tuple[pyarrow.Table, np.ndarray]]:
    """Yield the rows of each part that has vectors, and its vectors (vectors, dimension).

    Raises:
        ResourceError: If a part is damaged. It is deleted, so that the next process computes it again.
    """
    import pyarrow

    for file in files:
        table = pyarrow.ipc.open_file(pyarrow.BufferReader(read_part(file))).read_all()
        if table.num_rows:
            column = table.column(VECTOR).combine_chunks()
            yield table.drop_columns([VECTOR]), column.flatten().to_numpy().reshape(len(column), -1)


def _write_parquet(parts: Sequence[Path], file: Path, dtype: str, description: Mapping[str, Any]) -> None:
    import pyarrow
    from pyarrow import parquet

    writer = None
    # Ids can be integers in one part and text in another; all then become text.
    types = {rows.schema.field("id").type for rows, _ in _read_parts(parts)}
    id_type = types.pop() if len(types) == 1 else pyarrow.string()
    for rows, vectors in _read_parts(parts):
        columns = {name: rows.column(name) for name in rows.column_names}
        columns["id"] = columns["id"].cast(id_type)
        columns[VECTOR] = _make_vector_column(vectors.astype(dtype))
        table = pyarrow.table(columns)
        # The schema of the first part has the description, and applies to all parts.
        if writer is None:
            schema = table.schema.with_metadata({"bertkit": to_json(description)})
            writer = parquet.ParquetWriter(file, schema, compression="zstd", use_dictionary=False)
        writer.write_table(table.cast(schema))
    if writer is not None:
        writer.close()


def _write_npy(parts: Sequence[Path], files: Sequence[Path], dtype: str, description: Mapping[str, Any]) -> None:
    rows_file, about, main = files
    about.write_text(to_json(description) + "\n", encoding="utf-8", newline="\n")
    shape = (description["vectors"], description["width"])
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    with rows_file.open("w", encoding="utf-8", newline="\n") as lines, main.open("wb") as stream:
        # The header states the number of all vectors, so that the parts can be appended one by one.
        np.lib.format.write_array_header_1_0(stream, header)
        for rows, vectors in _read_parts(parts):
            lines.writelines(f"{to_json(row)}\n" for row in rows.to_pylist())
            stream.write(np.ascontiguousarray(vectors.astype(dtype)).data)


def _make_vector_column(vectors: np.ndarray) -> pyarrow.Array:
    """Return vectors of shape (vectors, dimension) as an Arrow column of lists of a fixed size."""
    import pyarrow

    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), max(1, vectors.shape[1]))


def _make_id_column(values: Sequence[Any]) -> pyarrow.Array:
    """Return ids as a column of integers if all of them are 64-bit integers, else of text."""
    import pyarrow

    if all(isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63 for value in values):
        return pyarrow.array(values, type=pyarrow.int64())
    return pyarrow.array([str(value) for value in values])


def _read_metadata(file: Path) -> dict[str, Any] | None:
    """Read the note of `bertkit embed` from the metadata of a Parquet file, or from the file next to an npy file.

    Raises:
        DataError: If the note is damaged.
    """
    text: bytes | None = None
    with suppress(*_DAMAGE):
        if file.suffix == ".parquet":
            from pyarrow import parquet

            text = (parquet.read_schema(file).metadata or {}).get(b"bertkit")
        else:
            text = file.with_name(f"{file.name}.json").read_bytes()
    if text is None:
        return None
    with suppress(ValueError, RecursionError):
        if isinstance(note := json.loads(text), dict):
            return note
    raise DataError("the note of `bertkit embed` about the vectors is damaged", "write the file again", file=file)


def _read_parquet(file: Path) -> np.ndarray:
    from pyarrow import parquet

    names = parquet.read_schema(file).names
    if VECTOR not in names:
        raise DataError(f"no vectors in a column {VECTOR!r}", did_you_mean(VECTOR, names), file=file)
    array = parquet.read_table(file, columns=[VECTOR])[VECTOR].combine_chunks()
    if array.null_count:
        raise ValueError("a row without a vector")
    # Lists of the same length are one array of numbers in Arrow, which is reshaped without a copy of each list.
    values: np.ndarray = array.flatten().to_numpy(zero_copy_only=False)
    if len(values) % max(len(array), 1):
        raise ValueError("they differ in length")
    return values.reshape(len(array), -1)
