"""Read rows: map raw columns to canonical columns, and check their values."""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from bertkit.data.columns import (
    PAIR,
    SOFT_LABELS,
    ColumnSpec,
    find_unread_columns,
    header_error,
    join_words,
    map_columns,
    map_span_columns,
    source_columns,
)
from bertkit.data.text import Record, as_number, describe_record, name_lines
from bertkit.errors import DataError
from bertkit.progress import log
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import Row
from bertkit.storage.cache import log_once
from bertkit.storage.disk import offload_to_disk

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Digests: TypeAlias = "NDArray[np.uint64]"
"""Digests of a run's rows: an exact one, and one that ignores case, whitespace and Unicode form. Shape: (rows, 2)."""

# Messages for a row with a blank text and for a row without a gold value, and the remedy for the latter.
NO_TEXT, NO_LABEL, FILL_IN = "no text", "no label", "fill it in, or --set data.empty_label=drop"
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
_KEY = b"bertkit hold-out"  # another key would hold out other rows
_encode_row = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str).encode


class RowLocation(NamedTuple):
    """File of a row, and its line or row number; None if the file holds only this row."""

    file: str
    row: int | None

    def __str__(self) -> str:
        """Return the location as ``file:row``."""
        return self.file if self.row is None else f"{self.file}:{self.row}"


def locate_row(source: str | Path, line: int, row: Row) -> RowLocation:
    """Return the location of a row: a line of its source or, in a folder, the text file named after its id."""
    folder, text = Path(source), Path(source, f"{row.get('id')}.txt")
    return RowLocation(str(text), None) if folder.is_dir() and text.is_file() else RowLocation(str(source), line)


@dataclass(frozen=True)
class Split:
    """Rows of one split, with their line or row numbers in the source.

    Many rows are stored on disk; see `bertkit.storage.disk`.
    """

    name: str
    source: str
    rows: Sequence[Row]
    lines: Sequence[int]
    is_held_out: bool = False
    """Whether the split is the training or the validation part of a divided split."""
    training_rows: frozenset[int] = frozenset()
    """Indices of the rows of this split that the model to score was trained on."""
    normalized_overlap_count: int = 0
    """Number of `training_rows` that equal a training row only if case, whitespace and Unicode form are ignored."""
    unread_columns: tuple[str, ...] = ()
    """Columns of the source that are not read."""
    warnings: tuple[str, ...] = ()
    """Warnings about the rows, such as gold values that no model can predict."""

    def head(self, count: int | None) -> Split:
        """Return the first `count` rows; without a count, return all rows."""
        if count is None:
            return self
        return replace(self, rows=offload_to_disk(islice(self.rows, count)), lines=self.lines[:count])

    def select(self, indices: Iterable[int]) -> Split:
        """Return the rows at some indices; `training_rows` becomes empty."""
        positions = array("q", indices)
        rows = offload_to_disk(map(self.rows.__getitem__, positions))
        lines = array("q", map(self.lines.__getitem__, positions))
        return replace(self, rows=rows, lines=lines, training_rows=frozenset(), normalized_overlap_count=0)

    def locate(self, index: int) -> RowLocation:
        """Return the location of a row."""
        return locate_row(self.source, self.lines[index], self.rows[index])

    def column(self, name: str) -> Iterator[Any]:
        """Return an iterator over the values of a column, with None for rows that lack it."""
        return (row.get(name) for row in self.rows)

    def drop_column(self, name: str) -> Split:
        """Return the rows without a column."""
        return replace(self, rows=offload_to_disk({key: row[key] for key in row if key != name} for row in self.rows))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the canonical rows, which does not depend on the file format."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for row in self.rows:
            update_hash(digest, row)
        return digest.hexdigest()


def canonical_records(
    records: Iterable[Record], data: DataConfig, columns: ColumnSpec, source: str, warnings: list[str] | None = None
) -> Iterator[tuple[int, dict[str, Any], Row]]:
    """Yield (line, raw values, row with canonical columns) for each record, and add warnings to `warnings`.

    Raises:
        DataError: If a column is missing, or the header is repeated.
    """
    names: dict[str, list[str]] | None = None
    records = join_words(iter(records), data, columns, source, [] if warnings is None else warnings)
    for line, values in records:
        if names is None:
            try:
                names = map_columns(list(values), data, columns, source)
            except DataError as error:
                raise header_error(error, values, records, columns, source) from None
            if PAIR in names and PAIR not in data.columns:
                remedy = f"--set data.columns.{PAIR}=null drops it"
                log_once(f"the column {PAIR!r} is read as the second text of a pair; {remedy}")
        # Concatenated files repeat the header, so that each value is the name of its column.
        if list(values) == list(values.values()) and len(values) > 1:
            raise DataError("the header is repeated", "delete the line", file=source, row=line)
        row = {
            canonical: [values[name] for name in actual] if len(actual) > 1 else values[actual[0]]
            for canonical, actual in names.items()
        }
        yield line, values, row


def read_split(
    name: str,
    records: Iterable[Record],
    data: DataConfig,
    columns: ColumnSpec,
    read: Callable[[Row], Row | None],
    source: str | Path,
    row_errors: list[DataError] | None = None,
) -> Split:
    """Read the rows of a split, and check each row with `read`, which returns None to skip it.

    With `row_errors`, errors of rows are added to this list, and the rows are skipped.

    Raises:
        DataError: If rows are wrong; the message of the first error lists all lines with this error.
    """
    lines = array("q")
    errors: list[DataError] = [] if row_errors is None else row_errors
    line_of_id = dict[str, int]()
    skipped_counts, warnings = Counter[str](), list[str]()
    # Mapped ids must be unique, because they identify rows in predictions.
    has_unique_ids = "id" in data.columns
    # 1. Map the columns by the names in the first record.
    records, data = map_span_columns(records, data, columns)
    canonical_rows = canonical_records(records, data, columns, str(source), warnings)
    head = list(islice(canonical_rows, 1))

    # 2. Check each row. Continue after an error, so that the message can list all wrong lines.
    def read_rows() -> Iterator[Row]:
        for line, values, row in chain(head, canonical_rows):
            try:
                with add_row_location(source, line, data, values):
                    missing_value = find_drop_reason(values, row, data, columns)
                    checked = None if missing_value else read(row)
                    if checked is None:
                        skipped_counts[missing_value or "labels"] += 1
                        continue
                    is_mapped = has_unique_ids and "id" in checked
                    if is_mapped and (first_line := line_of_id.setdefault(str(checked["id"]), line)) != line:
                        message = f"the id {checked['id']!r} is also the id of line {first_line}"
                        raise DataError(message, "give each row a different id")
            except DataError as error:
                error.record = describe_record({**values, **row}, f"{error.message} {error.file}")
                errors.append(error)
                continue
            lines.append(line)
            yield checked

    # 3. Consume the generator, which fills `lines`, `errors` and `skipped_counts`, and report errors and counts.
    rows = offload_to_disk(islice(read_rows(), data.limit))
    _correct_remedies(errors, rows, columns.gold)
    if errors and row_errors is None:
        raise merge_errors(errors)
    for missing, count in skipped_counts.items():
        log.info(f"rows of {source} without {missing}, left out: {count:,}")
    if not rows and not errors:
        raise DataError(f"the {name} split has no rows", "add rows", file=source)
    unread = next((find_unread_columns(values, row, data) for _, values, row in head), ())
    return Split(name, str(source), rows, lines, unread_columns=unread, warnings=tuple(warnings))


def get_unread_columns(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """Return the unread columns of the first split with unread columns."""
    return next((split.unread_columns for split in splits.values() if split.unread_columns), ())


@contextmanager
def add_row_location(source: str | Path, line: int, data: DataConfig, values: Row) -> Iterator[None]:
    """Add the location of a row, and the source's name of the column, to every DataError in the block."""
    try:
        yield
    except DataError as error:
        error.file, error.row = locate_row(source, line, values)
        error.column = " ".join(source_columns(error.column, data)) if error.column else None
        raise


def update_hash(digest: Any, row: Row) -> None:
    """Update a digest with a canonical row, independent of the file format."""
    digest.update(_encode_row(row).encode())


def digest_text(row: Row, gold: str) -> bytes:
    """Return a digest of the columns that a model reads; see `get_model_inputs`."""
    # `sampling.py` reads the 16 bytes as two integers of 64 bits.
    digest = hashlib.blake2b(key=_KEY, digest_size=16)
    update_hash(digest, get_model_inputs(row, gold))
    return digest.digest()


def get_model_inputs(row: Row, gold: str) -> Row:
    """Return a row with only the columns that a model reads: without the gold value, soft labels and the id."""
    # With offsets, the words are derived from the text, and the spans are gold values.
    derived_columns = ("tokens", "offsets", "spans", "left_out_spans") if "offsets" in row else ()
    excluded = (gold, "id", SOFT_LABELS, *derived_columns)
    return {name: value for name, value in row.items() if name not in excluded}


def digest_rows(rows: Iterable[Row], gold: str) -> Digests:
    """Return half of each row's digest, which is unique among billions of texts. Shape: (rows,)."""
    import numpy as np

    return np.fromiter((int.from_bytes(digest_text(row, gold)[:8], "little") for row in rows), dtype="<u8")


def is_blank(value: object) -> bool:
    """Return whether a value is text without a visible character.

    >>> is_blank("  "), is_blank("NA"), is_blank(0)
    (True, False, False)
    """
    return isinstance(value, str) and not value.strip()


def is_missing(value: object) -> bool:
    """Return whether a value is missing: None, text without a visible character, or NaN."""
    return value is None or is_blank(value) or bool(isinstance(value, float) and value != value)


def find_joined_labels(values: Iterable[object], min_count: int = 2) -> tuple[str, str] | None:
    """Return the message and the remedy for a value that joins several labels, or None.

    Each joined label must also be a value, or occur in at least `min_count` joined values.

    >>> find_joined_labels(["a|b", "b", "a"])
    ("'a|b' looks like several labels", 'add --set options.multi_label=true')
    """
    names = {value for value in values if isinstance(value, str)}
    for separator in "|;,":
        parts = {name: [part.strip() for part in name.split(separator)] for name in sorted(names) if separator in name}
        counts = Counter(part for labels in parts.values() for part in labels)
        for name, labels in parts.items():
            # Digits are not counted as labels, because 1,500 can be a number.
            if all(part and not part.isdigit() and (part in names or counts[part] >= min_count) for part in labels):
                option = f" --set 'options.separator={separator}'" if separator != "|" else ""
                return f"{name!r} looks like several labels", f"add --set options.multi_label=true{option}"
    return None


def _correct_remedies(errors: Iterable[DataError], rows: Iterable[Row], gold: str) -> None:
    """If other rows seem to have several labels, suggest `multi_label` for rows without a label."""
    unlabeled_errors = [error for error in errors if error.message.startswith(NO_LABEL)]
    if problem := find_joined_labels(row.get(gold) for row in rows) if unlabeled_errors else None:
        for error in unlabeled_errors:
            error.remedy = f"{problem[0]}: {problem[1]}, so that an empty label means none of these labels"


def merge_errors(errors: list[DataError]) -> DataError:
    """Return the first error, and add the lines of other errors with the same message to its message."""
    first = errors[0]
    lines = [error.row or error.file for error in errors[1:] if error.message == first.message]
    first.message += name_lines(lines)  # dialect: ok: an attribute of errors
    return first


def find_drop_reason(values: Row, row: Row, data: DataConfig, columns: ColumnSpec) -> str:
    """Return what a row to drop lacks, such as ``text`` or ``a label``, or an empty text to keep the row.

    Rows that were rejected or ignored in Prodigy are dropped, because their correct label is unknown.

    Raises:
        DataError: If a text is blank, and ``data.empty_text`` is ``error``.
    """
    is_answered = columns.gold and "text" in values and "answer" not in source_columns(columns.gold, data)
    if is_answered and values.get("answer") in ("reject", "ignore"):
        return "an accepted answer"
    if data.empty_label == "drop" and columns.gold in row and is_missing(row[columns.gold]):
        return "a label"
    if data.empty_text == "keep":
        return ""
    may_be_blank = (columns.gold, *columns.blank, *columns.extra)
    blank_column = next((column for column in row if column not in may_be_blank and is_blank(row[column])), None)
    if blank_column is not None and data.empty_text == "error":
        raise DataError("no text", "fill it in, or --set data.empty_text=drop (or keep)", column=blank_column)
    return "" if blank_column is None else "text"


def check_texts(row: Row, *columns: str) -> None:
    """Check that the values of some columns are text; missing columns are ignored.

    Raises:
        DataError: If a value is not text.
    """
    for column in columns:
        if not isinstance(row.get(column, ""), str):
            raise DataError(f"{row[column]!r} is not text", "texts must be strings", column=column)


def read_texts(value: Any, column: str, *, first: int) -> list[str]:
    """Read a list of texts, or a single text, without empty texts at the end.

    Raises:
        DataError: If the value is neither, or an earlier text is empty; the message counts texts from `first`.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(text is None or isinstance(text, str) for text in texts):
        message = f"{str(value)[:60]!r} is neither a text nor a list of texts"
        raise DataError(message, f"write a list, or map several columns: {{{column}: [a, b]}}", column=column)
    last_index = max((index for index, text in enumerate(texts) if not (text is None or is_blank(text))), default=-1)
    # Empty texts at the end are padding. Without an earlier empty text, the indices of later texts would shift.
    for index, text in enumerate(texts[: last_index + 1], start=first):
        if text is None or is_blank(text):
            raise DataError(f"text {index} of {last_index + 1} is empty", "fill it in", column=column)
    return list(texts[: last_index + 1])


def read_number(row: Row, column: str, remedy: str) -> float:
    """Read a number. The error for other values has this remedy, or suggests a notation without commas.

    Raises:
        DataError: If the value is missing, or not a finite number.
    """
    if is_missing(row[column]):
        raise DataError(NO_LABEL, FILL_IN, column=column)
    number = as_number(row[column])
    if not math.isfinite(number):
        text = str(row[column]).strip()
        if _THOUSANDS.fullmatch(text):
            # 1,234 is 1234 in English and 1.234 in German, so the remedy has both.
            is_ambiguous = bool(_DECIMAL_COMMA.fullmatch(text))
            remedy = f"write {text.replace(',', '')}" + f" or {text.replace(',', '.')}" * is_ambiguous
        elif _DECIMAL_COMMA.fullmatch(text):
            remedy = f"write a decimal point: {text.replace('.', '').replace(',', '.')}"
        raise DataError(f"{column} {row[column]!r} is not a number", remedy, column=column)
    return number
