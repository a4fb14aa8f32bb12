"""Predictions written to files: streamed, whole or not at all, in the format of the file's ending."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bertkit.errors import ResourceError, UsageError
from bertkit.storage.files import to_json

Records = Iterable[dict[str, Any]]

_CHUNK_ROWS = 4096


def write_records(records: Records, file: Path) -> int:
    """Write records to a .jsonl, .csv, .tsv or .parquet file and return their number.

    The file appears only when all of it is written. In csv, tsv and Parquet, the probability of each label becomes a
    column ``probability_LABEL``; other nested values are written as JSON.

    Raises:
        UsageError: the file has another ending.
        ResourceError: the file cannot be written.
    """
    write = writer_for(file)
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        count = write(records, temporary)
        temporary.replace(file)
    except OSError as error:
        raise ResourceError(f"cannot be written: {error.strerror}", "choose another --output", file=file) from None
    finally:
        temporary.unlink(missing_ok=True)
    return count


def writer_for(file: Path) -> Callable[[Records, Path], int]:
    """Return the function that writes the format of a file's ending.

    Raises:
        UsageError: no format has this ending.
    """
    writers = {".jsonl": _write_jsonl, ".csv": _write_csv, ".tsv": _write_tsv, ".parquet": _write_parquet}
    if file.suffix not in writers:
        raise UsageError(f"--output {file}: unknown ending {file.suffix!r}", f"one of {', '.join(writers)}")
    return writers[file.suffix]


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without nested values.

    >>> flat({"id": 1, "probabilities": {"good": 0.75}, "tokens": ["a", "b"]})
    {'id': 1, 'probability_good': 0.75, 'tokens': '["a", "b"]'}
    """
    flattened: dict[str, Any] = {}
    for name, value in record.items():
        if name == "probabilities":
            flattened.update({f"probability_{label}": number for label, number in value.items()})
        else:
            flattened[name] = to_json(value) if isinstance(value, (list, dict)) else value
    return flattened


def _write_jsonl(records: Records, file: Path) -> int:
    count = 0
    with file.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(to_json(record) + "\n")
            count += 1
    return count


def _write_csv(records: Records, file: Path) -> int:
    return _write_separated(records, file, ",")


def _write_tsv(records: Records, file: Path) -> int:
    return _write_separated(records, file, "\t")


def _write_separated(records: Records, file: Path, delimiter: str) -> int:
    count = 0
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer: csv.DictWriter[str] | None = None
        for record in map(flat, records):
            if writer is None:
                writer = csv.DictWriter(stream, list(record), delimiter=delimiter)
                writer.writeheader()
            writer.writerow(record)
            count += 1
    return count


def _write_parquet(records: Records, file: Path) -> int:
    import pyarrow
    from pyarrow import parquet

    rows = map(flat, records)
    count, writer = 0, None
    try:
        while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
            table = pyarrow.Table.from_pylist(chunk, schema=writer.schema if writer else None)
            writer = writer or parquet.ParquetWriter(file, table.schema)
            writer.write_table(table)
            count += len(chunk)
    finally:
        if writer is not None:
            writer.close()
    return count
