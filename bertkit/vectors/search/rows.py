"""Rows of a file that become rows of an index: read once to check all of them, and again to compute their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.data.columns import check_clash
from bertkit.data.files import guess_format, read_records
from bertkit.data.remote import find_source, name_source
from bertkit.errors import DataError, UsageError
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import Row
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.passages import Coverage, PassageSplitter
from bertkit.vectors.text_files import read_text_rows

_RESULT_FIELDS = ("query", "query_id", "rank", "score", "similarity", "bm25")
"""Fields of results, next to the columns of a row."""

_PASSAGE_FIELDS = ("document", "file", "start", "end")
"""Fields of a passage, next to the columns of its row: id of the row, its file, and the characters of the passage."""


class IndexRow(NamedTuple):
    """A row as the index stores it: ``id``, ``text`` and the other columns; and its line or row number from 1."""

    line: int
    record: dict[str, Any]


@dataclass(frozen=True)
class TextRows:
    """Rows of a file in any format that `predict` reads, or the passages of their texts."""

    file: Path
    column: str = "text"
    skip_empty: bool = False
    """Whether to leave out rows without text; otherwise, they are an error."""
    first_id: int = 0
    """Id of the first row, if rows have no ids."""
    data: DataConfig = field(default_factory=DataConfig)
    """How the file is read; the names of its columns are not used."""
    passages: Mapping[str, Any] | None = None
    """Maximum tokens and overlap of passages, or None if each text is a row."""
    splitter: PassageSplitter | None = None
    """Splitter with the model's tokenizer; see `split_for`."""

    @classmethod
    def open(cls, file: str | Path, column: str = "text", **options: Any) -> TextRows:
        """Return the rows of a file; options are other fields by name.

        Raises:
            UsageError: If the file is standard input.
        """
        if str(file) == "-":
            raise UsageError("the rows are read twice, and standard input only once", "name a file")
        return cls(find_source(file), column, **options)

    @cached_property
    def name(self) -> str:
        """Path of the file, or its address if it was copied from one."""
        return name_source(self.file)

    def split_for(self, embedder: Embedder) -> TextRows:
        """Return the rows, or the passages that fit a model.

        Raises:
            UsageError: If passages of this size are not possible.
        """
        if self.passages is None:
            return self
        splitter = PassageSplitter(embedder, **self.passages)
        return replace(self, splitter=splitter, passages=splitter.describe())

    def __iter__(self) -> Iterator[IndexRow]:
        """Read the rows, or their passages.

        Raises:
            DataError: If a row has no text or no id, or the column is missing.
        """
        return (row for rows, _ in self.split() for row in rows)

    def split(self) -> Iterator[tuple[list[IndexRow], Coverage]]:
        """Read each row, or its passages, with the part of its text that is in them."""
        for row in self._read_rows():
            if self.splitter is None:
                yield [row], Coverage()
                continue
            document, text = row.record.pop("id"), row.record.pop("text")
            passages, coverage = self.splitter.split(text)
            rows = []
            for position, passage in enumerate(passages, 1):
                begin = {"id": f"{document}#{position}", "text": text[passage.start : passage.end]}
                place = {"document": document, "file": self.name, "start": passage.start, "end": passage.end}
                rows.append(IndexRow(row.line, {**begin, **place, **row.record}))
            yield rows, coverage

    def _read_rows(self) -> Iterator[IndexRow]:
        row_id = self.first_id
        # With passages, a text file is one document; otherwise each of its lines is a row.
        is_document = self.splitter is not None and guess_format(self.file.name)[1].startswith(".txt")
        data = self.data.model_copy(update={"format": "documents"}) if is_document else self.data
        records = read_records(self.file, data)
        for line, values, text in read_text_rows(islice(records, self.data.limit), self.column, self.name):
            if row_id == self.first_id:
                self._check_columns(values)
            if not text.strip():
                if self.skip_empty:
                    continue
                raise DataError("no text", "fill it in, or --skip-empty", file=self.name, row=line, column=self.column)
            if values.get("id", row_id) in (None, ""):
                raise DataError("no id", "fill it in, or remove the column", file=self.name, row=line, column="id")
            columns = {name: value for name, value in values.items() if name != self.column}
            yield IndexRow(line, {"id": row_id, "text": text, **columns})
            row_id += 1

    def check(self, index: Index | None = None) -> tuple[int, Coverage]:
        """Read all rows; return their number, and the part of the documents that is in passages.

        Args:
            index: Index that the rows are added to.

        Raises:
            DataError: If a row is wrong, the file has none, or an id occurs twice, in the file or in the index.
        """
        coverage, lines = Coverage(), dict[str, int]()
        for rows, row_coverage in self.split():
            coverage += row_coverage
            for row in rows:
                row_id = str(row.record["id"])
                if row_id in lines:
                    message = f"line {lines[row_id]} has the id {row_id!r} too"
                    raise DataError(message, "use an id once", file=self.name, row=row.line, column="id")
                lines[row_id] = row.line
        if not lines:
            raise DataError("no rows", "add rows", file=self.name)
        indexed_ids = [] if index is None else list(index.find_rows(lines))
        if indexed_ids:
            more = f" (and {len(indexed_ids) - 1:,} more ids)" if len(indexed_ids) > 1 else ""
            message = f"the index already has a row with the id {indexed_ids[0]!r}{more}"
            remedy = "delete it with `bertkit search delete`, or give the new row another id"
            raise DataError(message, remedy, file=self.name, row=lines[indexed_ids[0]], column="id")
        return len(lines), coverage

    def fingerprint(self) -> Mapping[str, Any]:
        """Return a description of the rows that does not depend on their first id."""
        settings: dict[str, Any] = {"column": self.column, "skip_empty": self.skip_empty}
        if self.splitter is not None:
            settings["passages"] = self.passages
        if changed := self.data.model_dump(mode="json", exclude={"columns"}, exclude_defaults=True):
            settings["data"] = changed
        return {"sha256": file_fingerprint(self.file), **settings}

    def _check_columns(self, values: Mapping[str, Any]) -> None:
        reserved = _RESULT_FIELDS + (_PASSAGE_FIELDS if self.splitter else ())
        check_clash(values, reserved, "results have", self.name)
        if self.column != "text" and "text" in values:
            message = f"the rows have a column 'text' next to {self.column!r}"
            raise DataError(message, "rename or remove it, so that nothing is lost", file=self.name, column="text")


def read_queries(file: str | Path, column: str = "text", data: DataConfig | None = None) -> Iterator[tuple[Row, str]]:
    """Read the queries of a file, or of standard input (``-``): the fields that their results start with, and texts.

    Raises:
        DataError: If a query is empty, or the column is missing.
    """
    data = data or DataConfig()
    for line, values, text in read_text_rows(islice(read_records(file, data), data.limit), column, file):
        if not text.strip():
            raise DataError("no text", "fill it in, or remove the row", file=file, row=line, column=column)
        yield {"query": text} | ({"query_id": values["id"]} if "id" in values else {}), text
