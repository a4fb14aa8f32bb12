"""Rows that become those of an index: read twice, first to check all of them, then to compute their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertkit.data.columns import refuse_clash
from bertkit.data.files import format_of, read_records
from bertkit.errors import DataError, UsageError
from bertkit.metrics import Numbers
from bertkit.recipe.records import Data
from bertkit.recipe.sections import Row, typed_path
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.passages import Coverage, Passage, PassageSplitter
from bertkit.vectors.search.shard import hash_id
from bertkit.vectors.text_files import read_text_rows

_RESULT_FIELDS = ("query", "query_id", "rank", "score", "similarity", "bm25")
"""What results have beside the columns of a row."""

_PASSAGE_FIELDS = ("document", "file", "start", "end")
"""What a passage has beside the columns of its row: the id of the row, and where the passage is in it."""


class IndexRow(NamedTuple):
    """A row of a file as an index keeps it."""

    line: int
    """Or its number, from 1."""
    text: str
    record: dict[str, Any]
    """What an index keeps: ``id``, ``text`` and the other columns."""
    has_id: bool
    """Whether the id is the row's own."""

    def passage(self, number: int, passage: Passage, columns: Mapping[str, Any]) -> IndexRow:
        """Return a passage of this row as a row, with some more columns."""
        text = self.text[passage.start : passage.end]
        others = {name: value for name, value in self.record.items() if name not in ("id", "text")}
        where = {"start": passage.start, "end": passage.end}
        record = {"id": f"{self.record['id']}#{number}", "text": text, **columns, **where, **others}
        return IndexRow(self.line, text, record, True)


@dataclass(frozen=True)
class TextRows:
    """The rows of a file in any format that `predict` reads, each with a text."""

    file: Path | str
    """``-`` for standard input, which is read once."""
    column: str = "text"
    skip_empty: bool = False
    """Whether rows without text are left out; otherwise they are refused."""
    reserved: tuple[str, ...] = _RESULT_FIELDS
    """Columns that the rows must not have."""
    first_id: int = 0
    """The id of the first row where the rows have none; those of the others follow."""
    passages: Mapping[str, Any] | None = None
    """``tokens`` and ``overlap`` of the passages that are the rows; None where each text is one."""
    data: Data = field(default_factory=Data)
    splitter: PassageSplitter | None = None
    """Splits each text, or the whole of a text file, into passages, once it is known for which model."""

    @classmethod
    def open(cls, file: str | Path, column: str = "text", **options: Any) -> TextRows:
        """Return the rows of a file; options are other fields by name.

        Raises:
            UsageError: it is standard input.
        """
        if str(file) == "-":
            raise UsageError("the rows are read twice, and standard input only once", "name a file")
        return cls(typed_path(file), column, **options)

    def split_for(self, embedder: Embedder) -> TextRows:
        """Return the rows, or the passages that fit a model.

        Raises:
            UsageError: there are no such passages.
        """
        if self.passages is None:
            return self
        splitter = PassageSplitter(embedder, **self.passages)
        return replace(self, splitter=splitter, passages=splitter.describe())

    def __iter__(self) -> Iterator[IndexRow]:
        """Read the rows, or their passages.

        Raises:
            DataError: a row without text or id, or the column is missing.
        """
        return (row for rows, _ in self.split() for row in rows)

    def split(self) -> Iterator[tuple[list[IndexRow], Coverage]]:
        """Read the rows, each by itself or as its passages, with how much of a row is in them."""
        for row in self._read_rows():
            if self.splitter is None:
                yield [row], Coverage()
                continue
            passages, coverage = self.splitter.split(row.text)
            begun = {"document": row.record["id"], "file": str(self.file)}
            yield [row.passage(number, passage, begun) for number, passage in enumerate(passages, 1)], coverage

    def _read_rows(self) -> Iterator[IndexRow]:
        position = self.first_id
        is_document = self.splitter is not None and format_of(Path(self.file).name)[1].startswith(".txt")
        data = self.data.model_copy(update={"format": "documents"}) if is_document else self.data
        records = read_records(self.file, data)
        for line, values, text in read_text_rows(islice(records, self.data.limit), self.column, self.file):
            if position == self.first_id:
                self._check_columns(values)
            if not text.strip():
                if self.skip_empty:
                    continue
                raise DataError("no text", "fill it in, or --skip-empty", file=self.file, row=line, column=self.column)
            identifier = values.get("id", position)
            if identifier is None or identifier == "":
                raise DataError("no id", "fill it in, or remove the column", file=self.file, row=line, column="id")
            others = {name: value for name, value in values.items() if name not in ("id", "text", self.column)}
            yield IndexRow(line, text, {"id": identifier, "text": text, **others}, "id" in values)
            position += 1

    def check(self, index: Index | None = None) -> tuple[int, Coverage]:
        """Read all rows once; return their number, and of passages how much of the documents is in them.

        Args:
            index: that the rows are added to.

        Raises:
            DataError: a row is wrong, there are none, or two have the same id, in the file or in the index.
        """
        coverage = Coverage()

        def hashed() -> Iterator[int]:
            nonlocal coverage
            for rows, of_row in self.split():
                coverage += of_row
                # Eight bytes per id: the ids of millions of rows need not be in memory.
                yield from (hash_id(row.record["id"]) for row in rows)

        hashes = np.fromiter(hashed(), dtype=np.uint64)
        if not len(hashes):
            raise DataError("no rows", "add rows", file=self.file)
        self._refuse_repeated(hashes)
        if index is not None:
            known = np.flatnonzero(index.has_hashes(hashes))
            if len(known):
                self._refuse_known(index, set(known.tolist()))
        return len(hashes), coverage

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what identifies the rows, whatever their ids are counted from."""
        settings: dict[str, Any] = {"column": self.column, "skip_empty": self.skip_empty}
        if self.splitter is not None:
            settings["passages"] = self.passages
        if changed := self.data.model_dump(mode="json", exclude={"columns"}, exclude_defaults=True):
            settings["data"] = changed
        return {"sha256": file_fingerprint(Path(self.file)), **settings}

    def _check_columns(self, values: Mapping[str, Any]) -> None:
        reserved = self.reserved + (_PASSAGE_FIELDS if self.splitter else ())
        refuse_clash(values, reserved, "results have", self.file)
        if self.column != "text" and "text" in values:
            what = f"the rows have a column 'text' beside {self.column!r}"
            raise DataError(what, "rename or remove it, so that nothing is lost", file=self.file, column="text")

    def _refuse_repeated(self, hashes: Numbers) -> None:
        values, counts = np.unique(hashes, return_counts=True)
        repeated = set(values[counts > 1].tolist())
        if not repeated:
            return
        lines: dict[str, int] = {}
        for row in self:
            identifier = str(row.record["id"])
            if hash_id(identifier) not in repeated:
                continue
            if identifier in lines:
                what = f"the id {identifier!r} is that of line {lines[identifier]} too"
                raise DataError(what, "give each row its own", file=self.file, row=row.line, column="id")
            lines[identifier] = row.line

    def _refuse_known(self, index: Index, positions: set[int]) -> None:
        suspects = {str(row.record["id"]): row.line for position, row in enumerate(self) if position in positions}
        known = index.find_ids(suspects)
        if known:
            identifier = next(iter(known))
            more = f" (and those of {len(known) - 1:,} more rows)" if len(known) > 1 else ""
            what = f"the index has a row with the id {identifier!r} already{more}"
            remedy = "delete it with `bertkit search delete`, or give the new row another id"
            raise DataError(what, remedy, file=self.file, row=suspects[identifier], column="id")


def read_queries(file: str | Path, column: str = "text", data: Data | None = None) -> Iterator[tuple[Row, str]]:
    """Read the queries of a file, or of standard input (``-``): what their results begin with, and their texts.

    Raises:
        DataError: a query is empty, or the column is missing.
    """
    for row in TextRows(typed_path(file), column, reserved=(), data=data or Data()):
        begin = {"query": row.text}
        yield (begin | {"query_id": row.record["id"]} if row.has_id else begin), row.text
