"""Map the columns of a source to canonical columns, and describe columns that are missing or not read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import Any

from bertkit.data.files import guess_format
from bertkit.data.formats.conll import ENTITY_TAG
from bertkit.data.formats.csv import looks_like_data
from bertkit.data.spans import SPAN_COLUMNS
from bertkit.data.text import Record, as_number, source_column
from bertkit.errors import DataError, did_you_mean
from bertkit.recipe.load import format_assignment
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import Row
from bertkit.storage.cache import log_once

PAIR = "text_pair"
SOFT_LABELS = "soft_labels"
"""Canonical column with a probability per label; only training rows can have it."""

_SENTENCE_COLUMN = re.compile(r"(?i)sent(ence)?[^a-z]*(id|idx|index|no|num|number|nr)?[^a-z]*")
_HEAD_ROWS = 50

_INPUT_NAMES = {
    *("text", PAIR, "premise", "hypothesis", "sentence", "sentence1", "sentence2"),
    *("question", "question1", "question2", "query", "passage", "context"),
}


@dataclass(frozen=True)
class ColumnSpec:
    """Canonical columns that a task family reads."""

    inputs: tuple[str, ...]
    """Inputs of the model, such as ``text``."""
    gold: str
    """Column of gold answers, such as ``label``; empty if rows need no gold answer."""
    optional: tuple[str, ...] = ()
    """Columns that are read only if the recipe maps them."""
    blank: tuple[str, ...] = ()
    """Columns whose text may be blank."""
    lists: tuple[str, ...] = ()
    """Columns with a list per row, which a recipe can also map to several columns of the source."""
    fallback_columns: Mapping[str, str] = field(default_factory=dict)
    """Input column -> column that can replace it in rows to predict, such as ``tokens`` -> ``text``."""
    always_fall_back: bool = False
    """Whether `fallback_columns` also applies to labeled rows."""
    spans: str = ""
    """Column of labeled spans of the text, which is read if the source lacks the gold column."""
    groups: tuple[str, ...] = ()
    """Held-out validation rows share no values of these columns with training rows; empty for all inputs."""
    extra: tuple[str, ...] = ()
    """Columns that the model does not read; they can be blank, and have no effect on which rows are drawn."""
    predicted: tuple[str, ...] = ()
    """Keys of a prediction besides ``prediction``; rows with such a column are rejected, because it would be lost."""

    @property
    def names(self) -> list[str]:
        """All canonical columns that a recipe may map."""
        gold = [self.gold] if self.gold else []
        return list(dict.fromkeys([*self.inputs, *self.optional, *self.fallback_columns.values(), *gold, "id"]))


def source_columns(canonical: str, data: DataConfig) -> list[str]:
    """Return the source columns that a canonical column is read from."""
    mapped = data.columns.get(canonical, canonical)
    return [mapped] if isinstance(mapped, str) else mapped


def find_unread_columns(values: Mapping[str, Any], row: Row, data: DataConfig) -> tuple[str, ...]:
    """Return the source columns that a row does not use."""
    read_columns = {data.split_column, *(column for canonical in row for column in source_columns(canonical, data))}
    return tuple(column for column in values if column not in read_columns)


def has_unmapped_pair(source_names: Sequence[str], data: DataConfig) -> bool:
    """Return whether a source has a column ``text_pair`` that the recipe neither maps nor ignores."""
    mapped = [name for names in data.columns.values() for name in ([names] if isinstance(names, str) else names)]
    return PAIR in source_names and PAIR not in (*mapped, *data.columns, *data.ignore_columns)


def map_span_columns(
    records: Iterable[Record], data: DataConfig, columns: ColumnSpec
) -> tuple[Iterator[Record], DataConfig]:
    """Return the records, and settings that map the columns of spans and ids, which the first record shows."""
    records = iter(records)
    first_record = list(islice(records, 1))
    names = first_record[0][1] if first_record else {}
    span_column = next((name for name in SPAN_COLUMNS if name in names), None)
    if span_column and columns.spans:
        uses_id = names.get("id") is not None and not set(source_columns(columns.gold, data)) <= set(names)
        mapping = {columns.spans: span_column, **({"id": "id"} if uses_id else {})}
        data = data.model_copy(update={"columns": {**mapping, **data.columns}})
    return chain(first_record, records), data


def join_words(
    records: Iterator[Record], data: DataConfig, columns: ColumnSpec, source: str, warnings: list[str]
) -> Iterator[Record]:
    """Join rows of one word into one record per sentence, whose columns are lists; yield other records unchanged.

    A column such as ``Sentence #`` or ``sentence_id`` identifies the sentence. It can be blank after the first word of
    a sentence.

    Raises:
        DataError: If every row is one word, and no column identifies the sentence.
    """
    word_column = source_columns("tokens", data)[0]
    head = list(islice(records, 1)) if "tokens" in columns.inputs else []
    # Read further rows only if the first is a word, because other rows of a stream must not wait for the next row.
    head += islice(records, _HEAD_ROWS - 1) if head and _is_word(head[0][1].get(word_column, [])) else ()
    records, are_words = chain(head, records), all(_is_word(values.get(word_column, [])) for _, values in head)
    id_column = next((name for _, values in head[:1] for name in values if _SENTENCE_COLUMN.fullmatch(name)), None)
    if not are_words or id_column is None:
        if are_words and columns.gold and len(head) == _HEAD_ROWS:
            message = "every row is one word, and no column shows which words form a sentence"
            raise DataError(message, "add a column sentence_id", file=source)
        yield from records
        return
    warnings.append(f"Each row is one word; words with the same {id_column!r} are joined into a sentence.")
    log_once(f"warning: {source}: {warnings[-1]}")
    sentence_id: object = None

    def get_sentence_id(record: Record) -> object:
        # Spreadsheets often have the id only in the first row of a sentence; pandas reads the blank cells as NaN.
        nonlocal sentence_id
        cell = record[1][id_column]
        sentence_id = sentence_id if str(cell).strip() in ("", "None", "nan") else cell
        return sentence_id

    for sentence_id, group in groupby(records, get_sentence_id):
        lines, rows = zip(*group, strict=True)
        yield lines[0], {**{key: [values[key] for values in rows] for key in rows[0]}, id_column: sentence_id}


def _is_word(value: object) -> bool:
    """Return whether a value is a single word, and not a list or the JSON of a list."""
    return not isinstance(value, (list, tuple)) and len(str(value).split()) < 2 and str(value)[:2] not in ('["', "['")


def describe_unread(unread: Sequence[str], data: DataConfig, optional: Sequence[str]) -> list[str]:
    """Describe the unread columns that look like inputs, in one text.

    >>> describe_unread(["date", "premise"], DataConfig(), ["text_pair"])
    ["'premise' looks like input and is not read. To read a pair: --set data.columns.text_pair=premise"]
    """
    unread_inputs = [name for name in unread if name.lower() in _INPUT_NAMES and name not in data.ignore_columns]
    if not unread_inputs:
        return []
    is_free = PAIR in optional and PAIR not in data.columns
    remedy = f" To read a pair: --set {format_assignment(f'data.columns.{PAIR}', unread_inputs[0])}" if is_free else ""
    names = ", ".join(map(repr, unread_inputs))
    verbs = "look like input and are" if len(unread_inputs) > 1 else "looks like input and is"
    return [f"{names} {verbs} not read.{remedy}"]


def missing_column_error(canonical: str, actual: str, names: list[str], source: str, data: DataConfig) -> DataError:
    """Return the error for a column that a source lacks, with the columns of the source."""
    file_format = guess_format(source)[0]
    is_plain_text = (file_format.name if file_format and data.format == "auto" else data.format) in ("txt", "lines")
    if names == [source_column("text", data)] and is_plain_text:
        message = f"no column {actual!r}: each line is one text, and there are no other columns"
        return DataError(message, "if tabs separate columns: --set data.format=tsv", file=source)
    inputs = [name for name in names if canonical == "text" and name.lower() in _INPUT_NAMES]
    hint = did_you_mean(actual, inputs or names)
    suggestion = hint.removeprefix("did you mean ").rstrip("?")
    suggestion, question = (suggestion, "") if suggestion in names else ("COLUMN", f"{hint} " * hint.startswith("did"))
    key = "distillation.soft_labels" if canonical == SOFT_LABELS else f"data.columns.{canonical}"
    return DataError(
        f"no column {actual!r}; there are {', '.join(map(repr, names))}",
        f"{question}add --set {format_assignment(key, suggestion)}",
        file=source,
    )


def header_error(error: DataError, first: Row, rest: Iterator[Record], columns: ColumnSpec, source: str) -> DataError:
    """Return the error for a file without a header, or the given error if the first line is a header.

    The first line is a row if one of its values recurs in its column, or is a number in a column of numbers. The
    numbers from 0 are a header: pandas writes them as column names.
    """
    names, rows = list(first), [first]
    with suppress(DataError):
        rows.extend(row for _, row in islice(rest, 100))
    values = {name: [row.get(name) for row in rows] for name in names}
    is_word = "tokens" in columns.inputs and bool(ENTITY_TAG.fullmatch("".join(names[-1:])))
    is_row = is_word or any(
        name.strip() and (name in values[name] or all(map(math.isfinite, map(as_number, [name, *values[name]]))))
        for name in names
    )
    if names == [*map(str, range(len(names)))] or not (is_row or all(looks_like_data([name]) for name in names)):
        return error
    # Suggest the canonical names first, and letters for further columns: text, label, c, d.
    example = ", ".join([*columns.inputs, *filter(None, [columns.gold]), *"cdefg"][: len(names)])
    remedy = f"name the columns: --set 'data.header=[{example}]'" + (f"; or {error.remedy}" if not is_row else "")
    if is_word:
        remedy = "if each line is a word with its tags: --set data.format=conll"
    excerpt = ", ".join(map(repr, names[:4]))[:120]
    return DataError(f"no header: the first line looks like data ({excerpt})", remedy, file=source, row=1)


def check_clash(row: Mapping[str, Any], names: Iterable[str], subject: str, file: object) -> None:
    """Check that no column of a row has a name that the output needs.

    Raises:
        DataError: If a column has one of `names`.
    """
    if (clash := next((name for name in names if name in row), None)) is not None:
        message = f"{subject} a column of the same name"
        raise DataError(message, "rename the column in the file", file=file, column=clash)


def map_columns(source_names: list[str], data: DataConfig, columns: ColumnSpec, source: str) -> dict[str, list[str]]:
    """Return canonical column -> the source columns that it is read from.

    Optional columns are included if the recipe maps them, and ``text_pair`` if the source has it. In rows to predict,
    ``id`` can be missing, and a column can replace another (`ColumnSpec.fallback_columns`).

    Raises:
        DataError: If a column is missing, or two canonical columns are mapped to the same column.
    """
    mapped = {**data.columns, **({PAIR: PAIR} if has_unmapped_pair(source_names, data) else {})}
    optional = [name for name in (*columns.optional, *columns.extra, "id") if name in mapped]
    gold = [columns.gold] if columns.gold else []
    mapping = {name: source_columns(name, data) for name in dict.fromkeys((*columns.inputs, *optional, *gold))}
    _replace_missing(mapping, source_names, data, columns)
    for canonical, actual in mapping.items():
        if len(actual) > 1 and canonical not in columns.lists:
            raise DataError(f"{canonical} is one column, not {len(actual)}", "name one in data.columns", file=source)
        for name in actual:
            if name not in source_names:
                raise missing_column_error(canonical, name, source_names, source, data)
    mapped_names = [name for actual in mapping.values() for name in actual]
    duplicates = {name for name in mapped_names if mapped_names.count(name) > 1}
    if duplicates:
        canonical_names = " and ".join(name for name, actual in mapping.items() if duplicates & set(actual))
        message = f"{canonical_names} are both mapped to the column {min(duplicates)!r}"
        raise DataError(message, "map them to different columns in data.columns", file=source)
    return mapping


def _replace_missing(
    mapping: dict[str, list[str]], source_names: list[str], data: DataConfig, columns: ColumnSpec
) -> None:
    """Remove a missing id from the mapping of rows to predict, and replace missing columns by other columns."""
    if not columns.gold and not set(mapping.get("id", ())) <= set(source_names):
        del mapping["id"]
    has_gold = set(source_columns(columns.gold, data)) <= set(source_names)
    if SOFT_LABELS in mapping and not has_gold:
        del mapping[columns.gold]
    span_columns = {*source_columns(columns.spans, data), *source_columns("text", data)}
    # Without a gold column, the spans of the text are its labels.
    has_spans = bool(columns.spans and columns.gold) and not has_gold and span_columns <= set(source_names)
    if has_spans:
        del mapping[columns.gold]
        mapping[columns.spans] = source_columns(columns.spans, data)
    if columns.gold and not columns.always_fall_back and not has_spans:
        return
    for name, fallback in columns.fallback_columns.items():
        is_replaced = has_spans or not set(mapping[name]) <= set(source_names)
        if is_replaced and set(source_columns(fallback, data)) <= set(source_names):
            del mapping[name]
            mapping[fallback] = source_columns(fallback, data)
