"""Vectors in files, as `bertkit embed` and other programs write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import DataError, UsageError, closest
from bertkit.metrics import Numbers
from bertkit.progress import stage
from bertkit.storage.columns import map_npy
from bertkit.vectors.embedding.parts import VECTOR
from bertkit.vectors.embedding.quantize import from_int8

Matrix = np.ndarray[Any, np.dtype[np.float32]]
"""Vectors, (rows, dimension)."""

_DAMAGE = (ValueError, OSError, LookupError, TypeError, AttributeError, RuntimeError)
"""What the readers of formats raise of a damaged file."""
_COMPARED = ("model", "pooling", "layers", "normalize", "truncate_dim", "max_length", "prompts", "include_prompt")


def read_vectors(file: Path, rows: int) -> Matrix:
    """Read the vectors of `rows` rows, one per row and in their order, as float32.

    A Parquet or JSON lines file has them in a column, a safetensors file in a tensor called ``embedding``; an npy file
    is one array. int8 vectors of `bertkit embed` are scaled back.

    Raises:
        UsageError: the file has another ending.
        DataError: it has no vectors, or not one per row, or a number that is not finite.
    """
    if file.suffix not in _READERS:
        raise UsageError(f"{file}: unknown ending {file.suffix!r}", f"vectors are read from {', '.join(_READERS)}")
    if not file.is_file():
        raise DataError("no such file", "name the file that `bertkit embed` wrote", file=file)
    with stage("reading vectors"):
        note = _read_metadata(file) or {}
        # One bit per dimension: near vectors become equal, and thresholds lose their meaning.
        if note.get("dtype") == "binary":
            raise DataError("binary vectors, which are too coarse", "run `bertkit embed` without --dtype", file=file)
        try:
            vectors: Numbers = _READERS[file.suffix](file)
            if note.get("dtype") == "int8":
                vectors = from_int8(vectors, np.array(note["ranges"], dtype=np.float32))
        except _DAMAGE as error:
            raise DataError(f"the vectors cannot be read: {error}", "write the file again", file=file) from None
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        what = f"an array of {vectors.dtype} with {vectors.ndim} axes, not rows of floating-point numbers"
        raise DataError(what, "write float32 or float16 vectors, one per row", file=file)
    if len(vectors) != rows:
        raise DataError(f"{len(vectors):,} vectors for {rows:,} rows", "give one per row, in the same order", file=file)
    refuse_not_finite(vectors, file)
    return vectors.astype(np.float32, copy=False)


def read_description(file: Path) -> dict[str, Any] | None:
    """Return what vectors must have in common to be compared, as `bertkit embed` has noted; None where it is not."""
    metadata = _read_metadata(file)
    if metadata is None:
        return None
    names = _COMPARED if metadata.get("unit", "text") == "text" else (*_COMPARED, "unit")
    return {name: metadata[name] for name in names if name in metadata}


def refuse_not_finite(vectors: Matrix, source: object) -> None:
    """Check that all numbers are finite.

    Raises:
        DataError: one is not; it has the row.
    """
    wrong = np.flatnonzero(~np.isfinite(vectors.sum(axis=1, dtype=np.float64)))
    if len(wrong):
        what = "a vector with a number that is not finite"
        raise DataError(what, "compute the vectors again", file=source, row=int(wrong[0]) + 1)


def _read_metadata(file: Path) -> dict[str, Any] | None:
    """Read the note of `bertkit embed`: in the metadata of the format, or beside a file that has none.

    Raises:
        DataError: the note is there, but damaged.
    """
    text: bytes | str | None = None
    with suppress(*_DAMAGE):
        if file.suffix == ".parquet":
            from pyarrow import parquet

            text = (parquet.read_schema(file).metadata or {}).get(b"bertkit")
        elif file.suffix == ".safetensors":
            with _opened_safetensors(file) as opened:
                text = (opened.metadata() or {}).get("bertkit")
        else:
            text = file.with_name(f"{file.name}.json").read_bytes()
    if text is None:
        return None
    with suppress(ValueError, RecursionError):
        if isinstance(note := json.loads(text), dict):
            return note
    raise DataError("what `bertkit embed` noted of the vectors is damaged", "write the file again", file=file)


def _read_parquet(file: Path) -> Numbers:
    from pyarrow import parquet

    _check_column(file, parquet.read_schema(file).names)
    array = parquet.read_table(file, columns=[VECTOR])[VECTOR].combine_chunks()
    if array.null_count:
        raise ValueError("a row without a vector")
    values: Numbers = array.flatten().to_numpy(zero_copy_only=False)
    if len(values) % max(len(array), 1):
        raise ValueError("they differ in length")
    return values.reshape(len(array), -1)


def _read_jsonl(file: Path) -> Numbers:
    vectors = []
    with file.open(encoding="utf-8") as lines:
        for record in map(json.loads, filter(str.strip, lines)):
            _check_column(file, list(record))
            vectors.append(np.array(record[VECTOR], dtype=np.float32))
    return np.stack(vectors)


def _read_safetensors(file: Path) -> Numbers:
    with _opened_safetensors(file) as opened:
        names = list(opened.keys())
        if len(names) > 1:
            _check_column(file, names)
        vectors: Numbers = opened.get_tensor(VECTOR if len(names) > 1 else names[0])
    return vectors


@contextmanager
def _opened_safetensors(file: Path) -> Iterator[Any]:
    """Open a file of tensors; raises ValueError where it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            yield opened
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _check_column(file: Path, names: list[str]) -> None:
    if VECTOR not in names:
        raise DataError(f"no vectors in a column {VECTOR!r}", closest(VECTOR, names), file=file)


_READERS = {".parquet": _read_parquet, ".jsonl": _read_jsonl, ".npy": map_npy, ".safetensors": _read_safetensors}
