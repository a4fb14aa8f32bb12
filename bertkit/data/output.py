"""Write predictions to files, atomically and row by row, in the format of the file ending."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.files import find_format, guess_format
from bertkit.data.formats.csv import find_dialect, parse_delimiter
from bertkit.data.remote import find_source
from bertkit.errors import DataError, ResourceError, UsageError, did_you_mean
from bertkit.progress import log
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import expand_path
from bertkit.storage.disk import offload_to_disk
from bertkit.storage.files import atomic_write, disk_error, is_disk_error, to_json
from bertkit.storage.outputs import check_not_inputs, delete_leftover_files, lock_output

if TYPE_CHECKING:
    import pyarrow

Records = Iterable[dict[str, Any]]

_CHUNK_ROWS = 4096
_MAX_EXACT = 2**53  # a float can hold every integer up to this size
# Excel runs text as a formula after = + - @, a tab, a line break, or full-width = + - @ (OWASP, CSV injection).
_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_JSON_TYPES = (str, int, float, list, dict, type(None))
_JSON_COLUMN = "records"  # column with the JSON of packed records
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

_ValueType = tuple[type | str, Any]
"""Type of a value, or ``long`` or ``huge`` for a large integer; and the time zone of a time."""


DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""Ending of csv and tsv files -> default delimiter."""

_DEFAULT_DIGITS = 4


@dataclass(frozen=True)
class FileLayout:
    """Options of a prediction file; the default of None depends on the ending and on the file with the rows."""

    columns: Sequence[str] = ()
    """Columns to write, in this order; empty for all columns."""
    delimiter: str | None = None
    encoding: str | None = None
    digits: int | None = None
    """Number of decimals of predicted numbers."""
    escape_formulas: bool = False
    """Whether to put a ' before text that a spreadsheet would run as a formula."""


DEFAULT_LAYOUT = FileLayout()


def check_layout(layout: FileLayout, output: Path) -> FileLayout:
    """Return a layout with the number of decimals and the delimiter character for an output file.

    Raises:
        UsageError: If the layout has options that only csv and tsv have, or an unknown encoding or delimiter.
    """
    options = {
        "--delimiter": layout.delimiter is not None,
        "--encoding": layout.encoding is not None,
        "--digits": layout.digits is not None,
        "--escape-formulas": layout.escape_formulas,
    }
    if output.suffix not in DELIMITERS:
        for option in (name for name, is_given in options.items() if is_given):
            raise UsageError(f"{option} with --output {output}", f"{option} requires {' or '.join(DELIMITERS)}")
        return layout
    if layout.encoding is not None:
        try:
            " ".encode(layout.encoding)
        except (LookupError, ValueError):
            hint = "use utf-8, utf-8-sig (with the byte order mark for Excel), cp1252 or another name that Python knows"
            raise UsageError(f"--encoding: unknown text encoding {layout.encoding!r}", hint) from None
    delimiter = None if layout.delimiter is None else parse_delimiter(layout.delimiter, "--delimiter")
    return replace(layout, delimiter=delimiter, digits=_DEFAULT_DIGITS if layout.digits is None else layout.digits)


def follow_source(layout: FileLayout, output: Path, source: str | Path | None, data: DataConfig) -> FileLayout:
    """Return a layout with the encoding of the source and, if both endings are equal, the delimiter of the source."""
    if source is None or str(source) == "-" or output.suffix not in DELIMITERS:
        return layout
    file = find_source(source)
    source_format = find_format(data.format) or guess_format(file.name)[0]
    if source_format is None or f".{source_format.name}" not in DELIMITERS:
        return layout
    delimiter, encoding = find_dialect(file, data)
    if f".{source_format.name}" != output.suffix:
        delimiter = DELIMITERS[output.suffix]
    return replace(layout, delimiter=layout.delimiter or delimiter, encoding=layout.encoding or encoding)


def write_new(records: Records, output: str | Path, inputs: Iterable[tuple[str, Path]]) -> int:
    """Lock a file, and write records with `write_records`; inputs are never overwritten.

    Args:
        records: Records to write; they are read after the file is locked.
        output: File to write; its ending selects the format.
        inputs: Name and path of each input file.

    Raises:
        UsageError: If the output is one of the inputs, or no format has its ending.
        ResourceError: If another process writes the file, or the file cannot be written.
    """
    file = expand_path(output)
    find_writer(file)
    check_not_inputs(file, inputs)
    with lock_output(file):
        return write_records(records, file)


def write_records(records: Records, file: Path, layout: FileLayout = DEFAULT_LAYOUT) -> int:
    """Write records to a .jsonl, .csv, .tsv or .parquet file and return their number.

    The file appears only when it is complete. In csv, tsv and Parquet, lists and objects become JSON. A Parquet column
    without a common type becomes text. The caller must hold the lock of the file.

    Args:
        records: Records to write.
        file: File to write; its ending selects the format.
        layout: Columns to write, and options of csv and tsv.

    Raises:
        UsageError: If the file has another ending, or the records lack a column of the layout.
        DataError: If a character is not in the encoding of the layout.
        ResourceError: If the file cannot be written.
    """
    write = find_writer(file)
    layout = replace(layout, delimiter=layout.delimiter or DELIMITERS.get(file.suffix))
    with _replace_file(file) as temporary:
        try:
            return write(_choose_columns(records, layout.columns) if layout.columns else records, temporary, layout)
        except UnicodeEncodeError as error:
            message = f"{error.object[error.start]!r} cannot be written in {layout.encoding}"
            raise DataError(message, "add --encoding utf-8", file=file) from None


def _choose_columns(records: Records, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield records with only these columns, in this order.

    Raises:
        UsageError: If the first record lacks a column.
    """
    for index, record in enumerate(records):
        unknown = next((name for name in columns if name not in record), None)
        if index == 0 and unknown is not None:
            raise UsageError(f"--columns: there is no column {unknown!r}", did_you_mean(unknown, record))
        yield {name: record[name] for name in columns if name in record}


def copy_parquet(source: Path, file: Path, is_kept: Sequence[bool]) -> int:
    """Copy selected rows of a Parquet file with their types and metadata, and return their number.

    Raises:
        ResourceError: If the file cannot be written.
    """
    from pyarrow import parquet

    count = start = 0
    with (
        parquet.ParquetFile(source) as reader,
        _replace_file(file) as temporary,
        parquet.ParquetWriter(temporary, reader.schema_arrow) as writer,
    ):
        # Keep the rows in Arrow, because Python values would lose types such as int8 or dictionaries.
        for batch in reader.iter_batches(_CHUNK_ROWS):
            rows = [row for row in range(len(batch)) if is_kept[start + row]]
            writer.write_batch(batch.take(rows))
            count, start = count + len(rows), start + len(batch)
    return count


@contextmanager
def _replace_file(file: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `file` at the end of the block.

    Raises:
        ResourceError: If the file cannot be written.
    """
    target = file.resolve()  # keep a symbolic link, and replace its target
    try:
        delete_leftover_files(target)
        with atomic_write(target) as temporary:
            yield temporary
    except OSError as error:
        if is_disk_error(error):
            raise disk_error(error.errno, file) from None
        # Use the system's message, because messages of pyarrow are long.
        reason = os.strerror(error.errno) if error.errno else error
        raise ResourceError(f"cannot be written: {reason}", "choose another --output", file=file) from None


def find_writer(file: Path) -> Callable[[Records, Path, FileLayout], int]:
    """Return the function that writes files with this ending.

    Raises:
        UsageError: If no format has this ending.
    """
    writers: dict[str, Callable[[Records, Path, FileLayout], int]] = {
        ".jsonl": _write_jsonl,
        ".csv": _write_separated,
        ".tsv": _write_separated,
        ".parquet": _write_parquet,
    }
    if file.suffix not in writers:
        raise UsageError(f"--output {file}: unknown ending {file.suffix!r}", f"use {', '.join(writers)}")
    return writers[file.suffix]


def flatten_prediction(prediction: Mapping[str, Any], digits: int | None) -> dict[str, Any]:
    """Return a prediction as columns, with one column per label and numbers rounded to `digits` decimals.

    The probability of the predicted label comes first, as ``confidence``.

    >>> flatten_prediction({"prediction": "good", "probabilities": {"bad": 0.24999, "good": 0.75001}}, 4)
    {'prediction': 'good', 'confidence': 0.75, 'probability_bad': 0.25, 'probability_good': 0.75}
    """
    columns: dict[str, Any] = {}
    for name, value in prediction.items():
        if name == "probabilities" and isinstance(value, Mapping):
            # A prediction with several labels has several probabilities, and no confidence.
            if isinstance(prediction["prediction"], str):
                columns["confidence"] = value[prediction["prediction"]]
            columns.update({f"probability_{label}": probability for label, probability in value.items()})
        else:
            columns[name] = value
    return columns if digits is None else {name: _round_floats(value, digits) for name, value in columns.items()}


def _round_floats(value: object, digits: int) -> object:
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {name: _round_floats(inner, digits) for name, inner in value.items()}
    return [_round_floats(inner, digits) for inner in value] if isinstance(value, list) else value


def _write_jsonl(records: Records, file: Path, _: FileLayout) -> int:
    count = 0
    with file.open("w", encoding="utf-8", newline="\n") as stream:
        for record in records:
            stream.write(to_json(record) + "\n")
            count += 1
    return count


def _write_separated(records: Records, file: Path, layout: FileLayout) -> int:
    escape = _escape_formula if layout.escape_formulas else lambda value: value
    types_by_column, records = _find_column_types(records)
    # The csv module writes \r\n. Without `newline`, Python on Windows would turn it into \r\r\n.
    with file.open("w", encoding=layout.encoding or "utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter=layout.delimiter or ",")
        writer.writerow(map(escape, types_by_column))
        writer.writerows([escape(record.get(name)) for name in types_by_column] for record in records)
    return len(records)


def _write_parquet(records: Records, file: Path, _: FileLayout) -> int:
    import pyarrow
    from pyarrow import parquet

    types_by_column, records = _find_column_types(records)
    schema = pyarrow.schema([(name, _find_type(name, samples)) for name, samples in types_by_column.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, len(records), _CHUNK_ROWS):
            chunk = records[start : start + _CHUNK_ROWS]
            # Convert values without a common type to text; nulls stay nulls.
            columns = []
            for field in schema:
                values = [record.get(field.name) for record in chunk]
                if field.type == pyarrow.string():
                    values = [value if value is None or isinstance(value, str) else _as_text(value) for value in values]
                columns.append(pyarrow.array(values, type=field.type))
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
    return len(records)


def _find_column_types(records: Records) -> tuple[dict[str, dict[_ValueType, Any]], Sequence[dict[str, Any]]]:
    """Return column -> type -> sample value, and the records.

    All records are read and stored on disk, because the columns and types are known only after the last record.
    """
    types_by_column: dict[str, dict[_ValueType, Any]] = {}

    def add_types(record: dict[str, Any]) -> dict[str, Any]:
        for name, value in record.items():
            samples = types_by_column.setdefault(name, {})
            if value is not None:
                samples.setdefault(_get_value_type(value), value)
        return record

    return types_by_column, offload_to_disk(map(add_types, map(_nested_to_json, records)))


def pack_records(records: Records) -> bytes:
    """Serialize records to bytes for `unpack_records`.

    The records become JSON. Values that JSON lacks, such as dates, times and bytes, are stored in Arrow columns.
    """
    import pyarrow
    from pyarrow import ipc

    rows = list(records)
    samples: dict[str, dict[_ValueType, Any]] = {}
    for record in rows:
        for name, value in record.items():
            if not isinstance(value, _JSON_TYPES):
                samples.setdefault(name, {}).setdefault(_get_value_type(value), value)
    types = {name: _find_type(name, values) for name, values in samples.items()}
    # JSON stores other values as text, as all output formats do.
    types = {name: arrow_type for name, arrow_type in types.items() if arrow_type != pyarrow.string()}
    # csv files can contain NaN, which `json.dumps` writes without an error.
    lines = [
        json.dumps(record | {name: None for name in types if name in record}, ensure_ascii=False, default=str)
        for record in rows
    ]
    columns = [pyarrow.array([record.get(name) for record in rows], type=types[name]) for name in types]
    columns = [pyarrow.array(lines, type=pyarrow.string()), *columns]
    table = pyarrow.Table.from_arrays(columns, [_JSON_COLUMN, *types])
    content = pyarrow.BufferOutputStream()
    with ipc.new_stream(content, table.schema) as stream:
        stream.write_table(table)
    return bytes(content.getvalue())


def unpack_records(content: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of `pack_records`.

    Args:
        content: Bytes or Arrow buffer.
    """
    from pyarrow import ipc

    table = ipc.open_stream(content).read_all()
    # The first column has the JSON, and the other columns have values that JSON lacks.
    lines, *columns = (column.to_pylist() for column in table.itercolumns())
    for index, line in enumerate(lines):
        record = json.loads(line)
        for name, values in zip(table.column_names[1:], columns, strict=True):
            if name in record:
                record[name] = values[index]
        yield record


def _nested_to_json(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its lists and objects as JSON."""
    return {name: to_json(value) if isinstance(value, (list, dict)) else value for name, value in record.items()}


def _get_value_type(value: object) -> _ValueType:
    if type(value) is int and not -_MAX_EXACT <= value <= _MAX_EXACT:
        return ("long" if -(2**63) <= value < 2**63 else "huge"), None
    return type(value), getattr(value, "tzinfo", None)


def _find_type(name: str, samples: Mapping[_ValueType, Any]) -> pyarrow.DataType:
    """Return the Arrow type that holds all values of a column exactly; text if there is no such type."""
    import pyarrow

    types = {value_type for value_type, _ in samples}
    # Floats cannot hold large integers, and decimals differ in their number of digits.
    is_numeric = types <= {int, "long"} or types <= {int, float}
    if is_numeric or (len(samples) == 1 and not types & {"huge", Decimal}):
        sample = next(iter(samples.values()), None)
        with suppress(pyarrow.ArrowException):
            inferred = pyarrow.infer_type(list(samples.values()))
            # pyarrow would drop the nanoseconds of pandas times.
            if hasattr(sample, "nanosecond"):
                return pyarrow.timestamp("ns", tz=inferred.tz)
            return pyarrow.duration("ns") if hasattr(sample, "nanoseconds") else inferred
    if len(samples) > 1:
        log.info(f"column {name!r} has values of different types, so it is written as text")
    return pyarrow.string()


def _as_text(value: object) -> str:
    return to_json(value) if isinstance(value, (bool, int, float)) else str(value)


def _escape_formula(value: object) -> object:
    """Put a ' before text, except numbers, that a spreadsheet would run as a formula.

    >>> _escape_formula("=1+1"), _escape_formula("-1.5"), _escape_formula("a=b")
    ("'=1+1", '-1.5', 'a=b')
    """
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value
