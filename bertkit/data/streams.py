"""Training rows that are read while a model trains, for data that does not fit memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertkit.data.files import read_records
from bertkit.data.formats.csv import Record
from bertkit.data.hub_sets import read_hub_split
from bertkit.data.rows import Columns, Split, canonical_records, feed_row, is_dropped, placed
from bertkit.data.sources import Read, files_by_split, is_validation
from bertkit.errors import DataError, RecipeError
from bertkit.recipe import Data, Row

SORT_WINDOW = 50
"""Batches whose rows are sorted by length together: wide enough that padding nearly vanishes, narrow enough to stay
random. Of a stream, only so many are in memory."""

_Part = tuple[str, Callable[[], Iterable[Record]]]


@dataclass(frozen=True)
class RowStream:
    """The training rows of a source, which are read anew in each pass.

    Each is checked as `read_split` does it, but that two rows have one ``id``, since all ids would not fit memory
    either. The first bad row ends a run.
    """

    source: str
    open: Callable[[], Iterator[tuple[int, Row]]]
    """Begins a pass; gives each row with its line."""
    size: int
    """Rows of a window."""

    def head(self) -> Split:
        """Read the rows of the first window (or all, if there are fewer): what is known before training."""
        found = list(islice(self.open(), self.size))
        if not found:
            raise DataError("the train split has no rows", "give it some", file=self.source)
        return Split("train", self.source, [row for _, row in found], [line for line, _ in found])


class StreamBuffers:
    """StreamBuffers of a stream's rows in their order, all of one size: where the rows end, the next pass begins."""

    def __init__(self, stream: RowStream) -> None:
        self.stream = stream
        self._begin(0)

    def state(self) -> dict[str, Any]:
        """Say where the next window begins: pass, rows of the pass that lie before it, and a SHA-256 over them."""
        return {"pass": self.number, "rows": self.rows, "sha256": self.digest.hexdigest()}

    def load_state(self, place: dict[str, Any]) -> None:
        """Go to a place, past the rows before it.

        Raises:
            DataError: they are not the rows that lay before it then.
        """
        self._begin(place["pass"])
        for _, row in islice(self.lines, place["rows"]):
            self._count(row)
        if self.state() != place:
            what = f"the first {place['rows']:,} rows are not those that this run was trained on"
            raise DataError(what, "put them back, or --fresh to start anew", file=self.stream.source)

    def read(self) -> list[Row]:
        """Read the next window."""
        return [self._next() for _ in range(self.stream.size)]

    def _begin(self, number: int) -> None:
        self.number, self.rows, self.digest, self.lines = number, 0, hashlib.sha256(), self.stream.open()

    def _next(self) -> Row:
        for _, row in self.lines:
            self._count(row)
            return row
        if not self.rows:
            raise DataError("the train split has no rows", "give it some", file=self.stream.source)
        self._begin(self.number + 1)
        return self._next()

    def _count(self, row: Row) -> None:
        feed_row(self.digest, row)
        self.rows += 1


def open_stream(data: Data, columns: Columns, read: Read, batch_size: int) -> RowStream:
    """Find the training rows of a source whose validation rows are a split of their own.

    Args:
        data: the recipe's data section.
        columns: canonical columns of the task family.
        read: gives a checked row, or None for one to leave out.
        batch_size: rows of a batch; a window has `SORT_WINDOW` batches.

    Raises:
        DataError: no training rows, or no validation split.
        RecipeError: the demo data.
    """
    parts = _find_parts(data)

    def begin() -> Iterator[tuple[int, Row]]:
        return islice(chain.from_iterable(_read_part(part, data, columns, read) for part in parts), data.limit)

    return RowStream(parts[0][0], begin, SORT_WINDOW * batch_size)


def _read_part(part: _Part, data: Data, columns: Columns, read: Read) -> Iterator[tuple[int, Row]]:
    source, begin = part
    for line, _, row in canonical_records(begin(), data, columns, source):
        with placed(source, line, data):
            known = None if is_dropped(row, data, columns) else read(row)
        if known is not None:
            yield line, known


def _find_parts(data: Data) -> list[_Part]:
    """Give the name of each file (or the hub's split) that holds training rows, and what begins to read it."""
    if data.source == "demo":
        raise RecipeError("the demo data is made in memory", "leave data.streaming out")
    if not data.source and not data.files:
        raise DataError("the recipe names no data", "--data FILE, a directory, or a hub data set")
    source = Path(data.source).expanduser()
    is_file = source.is_file() and not data.files
    files = {"train": [source]} if is_file else files_by_split(data)
    if files is None:
        split = data.splits.get("train", "train")
        return [(f"{data.source}:{split}", partial(read_hub_split, data, split))]
    if "train" not in files:
        raise DataError(f"no train split (found: {', '.join(files)})", "name it in data.splits or data.files")
    if not any(map(is_validation, files)):
        what = "nothing is held out from a stream: the validation rows need a file of their own"
        raise DataError(what, "--set data.files.validation=FILE", file=data.source or files["train"][0])
    return [(str(file), partial(read_records, file, data)) for file in files["train"]]
