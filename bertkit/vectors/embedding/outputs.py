"""Files of vectors: .parquet, .npy, .safetensors or .jsonl, written part by part."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertkit.errors import DataError, UsageError, closest
from bertkit.metrics import Numbers
from bertkit.storage.files import sync_folder, to_json
from bertkit.vectors.embedding.parts import VECTOR, read_parts, vector_column, vectors_of
from bertkit.vectors.embedding.quantize import find_ranges, to_bits, to_int8

DTYPES = ("float32", "float16", "int8", "binary")
RESCORE = "int8"
"""The column of the int8 vectors that are kept beside binary ones, so that the nearest can be scored again."""

_TENSOR_TYPES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}


@dataclass(frozen=True)
class Vectors:
    """Parts, how their vectors are stored, and what is said of them."""

    parts: Sequence[Path]
    dtype: str
    rows: int
    width: int
    ranges: Numbers
    """Lowest and highest value of each dimension, (2, width), of which int8 vectors are made."""
    about: Mapping[str, Any]

    def columns(self) -> dict[str, Callable[[Numbers], Numbers]]:
        """Return the name of each column of vectors, and how it is computed from float32 vectors."""
        as_int8 = {RESCORE: lambda vectors: to_int8(vectors, self.ranges)} if self.dtype == "binary" else {}
        how: dict[str, Callable[[Numbers], Numbers]] = {
            "float32": lambda vectors: vectors,
            "float16": lambda vectors: vectors.astype(np.float16),
            "int8": lambda vectors: to_int8(vectors, self.ranges),
            "binary": to_bits,
        }
        return {VECTOR: how[self.dtype], **as_int8}

    def description(self) -> dict[str, Any]:
        """Return what is said of the vectors as JSON values, with the ranges of int8 ones."""
        ranges = {"ranges": self.ranges.tolist()} if self.dtype in ("int8", "binary") else {}
        return {**self.about, "dtype": self.dtype, "vectors": self.rows, "width": self.width, **ranges}


def gather(parts: Sequence[Path], dtype: str, about: Mapping[str, Any]) -> Vectors:
    """Count the vectors of all parts, and find the range of each dimension.

    Raises:
        DataError: there is not one vector.
    """
    rows, ranges = 0, None
    for table in read_parts(parts):
        vectors = vectors_of(table)
        rows, ranges = rows + len(vectors), find_ranges(vectors, ranges)
    if ranges is None:
        raise DataError("the rows have no words", "give rows with text")
    return Vectors(parts, dtype, rows, ranges.shape[1], ranges, about)


def output_files(output: Path, dtype: str) -> list[Path]:
    """List the files that an output consists of; the one that was named comes last.

    Raises:
        UsageError: no format has its ending, or no dtype this name.
    """
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype}", closest(dtype, DTYPES))
    if output.suffix not in _WRITERS:
        raise UsageError(f"--output {output}: unknown ending {output.suffix!r}", f"one of {', '.join(_WRITERS)}")
    rows, about, rescore = (output.with_name(f"{output.name}{ending}") for ending in _BESIDE)
    of_npy = [rows, about, *([rescore] if dtype == "binary" else [])]
    beside = {".npy": of_npy, ".safetensors": [rows], ".jsonl": [about]}
    return [*beside.get(output.suffix, []), output]


def write_output(vectors: Vectors, output: Path, staging: Path) -> None:
    """Write all files of an output; the one that was named comes last, and counts for all.

    Args:
        vectors: what to write.
        output: its ending chooses the format.
        staging: a folder on the same disk, where files are written before they take their place.
    """
    staging.mkdir(exist_ok=True)
    files = output_files(output, vectors.dtype)
    _WRITERS[output.suffix](vectors, [staging / file.name for file in files])
    for file in files:
        with (staging / file.name).open("rb") as stream:
            os.fsync(stream.fileno())
    real = output.resolve()  # a symbolic link stays one
    real.unlink(missing_ok=True)  # never an old file of vectors beside the ids of new ones
    for file in files[:-1]:
        (staging / file.name).replace(file)
    (staging / output.name).replace(real)
    sync_folder(real.parent)


def _write_parquet(vectors: Vectors, files: Sequence[Path]) -> None:
    import pyarrow
    from pyarrow import parquet

    writer = None
    types = {table.schema.field("id").type for table in read_parts(vectors.parts)}
    id_type = types.pop() if len(types) == 1 else pyarrow.string()
    for table in read_parts(vectors.parts):
        floats = vectors_of(table)
        columns = {name: table.column(name) for name in table.column_names if name != VECTOR}
        columns["id"] = columns["id"].cast(id_type)
        columns |= {name: vector_column(convert(floats)) for name, convert in vectors.columns().items()}
        table = pyarrow.table(columns)
        if writer is None:
            metadata = {"bertkit": to_json(vectors.description())}
            schema = table.schema.with_metadata(metadata)
            writer = parquet.ParquetWriter(files[-1], schema, compression="zstd", use_dictionary=False)
        writer.write_table(table.cast(schema))
    if writer is not None:
        writer.close()


def _write_npy(vectors: Vectors, files: Sequence[Path]) -> None:
    rows, about, *rescore, main = files
    _write_rows(vectors, rows)
    about.write_text(to_json(vectors.description()) + "\n", encoding="utf-8")
    for file, convert in zip([main, *rescore], vectors.columns().values(), strict=True):
        sample = convert(np.zeros((1, vectors.width), dtype=np.float32))
        with file.open("wb") as stream:
            header = {"descr": sample.dtype.str, "fortran_order": False, "shape": (vectors.rows, sample.shape[1])}
            np.lib.format.write_array_header_1_0(stream, header)
            _write_numbers(vectors, convert, stream)


def _write_safetensors(vectors: Vectors, files: Sequence[Path]) -> None:
    """Write the tensors one after the other; the library can only write those that are in memory."""
    rows, main = files
    _write_rows(vectors, rows)
    header: dict[str, Any] = {"__metadata__": {"bertkit": to_json(vectors.description())}}
    end = 0
    for name, convert in vectors.columns().items():
        sample = convert(np.zeros((1, vectors.width), dtype=np.float32))
        begin, end = end, end + vectors.rows * sample.nbytes
        shape = [vectors.rows, sample.shape[1]]
        header[name] = {"dtype": _TENSOR_TYPES[sample.dtype.name], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with main.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for convert in vectors.columns().values():
            _write_numbers(vectors, convert, stream)


def _write_jsonl(vectors: Vectors, files: Sequence[Path]) -> None:
    about, main = files
    about.write_text(to_json(vectors.description()) + "\n", encoding="utf-8")
    with main.open("w", encoding="utf-8") as stream:
        for table in read_parts(vectors.parts):
            floats = vectors_of(table)
            lists = {name: as_json_lists(convert(floats)) for name, convert in vectors.columns().items()}
            for number, row in enumerate(table.drop_columns([VECTOR]).to_pylist()):
                fields = "".join(f', "{name}": {texts[number]}' for name, texts in lists.items())
                stream.write(f"{to_json(row)[:-1]}{fields}}}\n")


def as_json_lists(numbers: Numbers) -> list[str]:
    """Return each line of numbers as a JSON list with as many digits as tell them apart.

    >>> as_json_lists(np.array([[0.1, -1.0]], dtype=np.float32))
    ['[0.100000001, -1]']
    """
    digits = {"float32": "{:.9g}", "float16": "{:.5g}"}.get(numbers.dtype.name, "{}")
    return [f"[{', '.join(map(digits.format, line))}]" for line in numbers.tolist()]


def _write_rows(vectors: Vectors, file: Path) -> None:
    """Write what each vector stands for: its id, and its word or token."""
    with file.open("w", encoding="utf-8") as stream:
        for table in read_parts(vectors.parts):
            stream.writelines(f"{to_json(row)}\n" for row in table.drop_columns([VECTOR]).to_pylist())


def _write_numbers(vectors: Vectors, convert: Callable[[Numbers], Numbers], stream: BinaryIO) -> None:
    for table in read_parts(vectors.parts):
        stream.write(np.ascontiguousarray(convert(vectors_of(table))).data)


_BESIDE = (".rows.jsonl", ".json", ".int8.npy")
_WRITERS: Mapping[str, Callable[[Vectors, Sequence[Path]], None]] = {
    ".parquet": _write_parquet,
    ".npy": _write_npy,
    ".safetensors": _write_safetensors,
    ".jsonl": _write_jsonl,
}
