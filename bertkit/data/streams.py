"""Training rows that are read while a model trains, for data that does not fit memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from bertkit.data.columns import Columns, with_span_columns
from bertkit.data.files import read_records
from bertkit.data.formats import find_format
from bertkit.data.hub_sets import read_hub_split
from bertkit.data.rows import Split, canonical_records, feed_row, is_dropped, placed
from bertkit.data.sources import Read, check_source, files_by_split, is_validation, single_file
from bertkit.data.text import Record
from bertkit.errors import DataError, RecipeError
from bertkit.recipe import Data, Row

SORT_WINDOW = 50
"""Batches whose rows are in memory and sorted by length: enough for little padding, few enough to stay random."""


class _Shard(NamedTuple):
    """A file or a split of the hub with training rows."""

    source: str
    open: Callable[[], Iterable[Record]]


@dataclass(frozen=True)
class RowStream:
    """The training rows of a source, which are read anew in each pass.

    Each row is checked as `read_split` does, except that two rows may have one ``id``, since all ids would not fit
    memory. The first bad row ends a run.
    """

    source: str
    open: Callable[[], Iterator[tuple[int, Row]]]
    """Begins a pass and yields each row with its line."""
    buffer_rows: int
    """Rows that are in memory at a time."""

    def head(self) -> Split:
        """Read the rows of the first buffer (or all, if there are fewer): what is known before training.

        Raises:
            DataError: there are no rows, or one of these is wrong.
        """
        numbered = list(islice(self.open(), self.buffer_rows))
        if not numbered:
            raise DataError("the train split has no rows", "add rows", file=self.source)
        return Split("train", self.source, [row for _, row in numbered], [line for line, _ in numbered])


class StreamBuffers:
    """The rows of a stream in their order, a buffer at a time; where the rows end, the next pass begins.

    All buffers have the same number of rows, so that a buffer may hold the end of one pass and the start of the next.
    """

    def __init__(self, stream: RowStream) -> None:
        self.stream = stream
        self._begin_pass(0)

    def state(self) -> dict[str, Any]:
        """Return where the next buffer begins: the pass, the rows of the pass before it, and a SHA-256 over them."""
        return {"pass": self.number, "rows": self.rows, "sha256": self.digest.hexdigest()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state: the rows before it are read and skipped.

        Raises:
            DataError: they are not the rows that the state was saved after.
        """
        self._begin_pass(state["pass"])
        for _, row in islice(self.lines, state["rows"]):
            self._count_row(row)
        if self.state() != state:
            what = f"the first {state['rows']:,} rows are not those that this run was trained on"
            raise DataError(what, "put them back, or --fresh to start over", file=self.stream.source)

    def read(self) -> list[Row]:
        """Read the next buffer."""
        return [self._next_row() for _ in range(self.stream.buffer_rows)]

    def _begin_pass(self, number: int) -> None:
        self.number, self.rows, self.digest, self.lines = number, 0, hashlib.sha256(), self.stream.open()

    def _next_row(self) -> Row:
        for _, row in self.lines:
            self._count_row(row)
            return row
        if not self.rows:
            raise DataError("the train split has no rows", "add rows", file=self.stream.source)
        self._begin_pass(self.number + 1)
        return self._next_row()

    def _count_row(self, row: Row) -> None:
        feed_row(self.digest, row)
        self.rows += 1


def open_stream(data: Data, columns: Columns, read: Read, batch_size: int) -> RowStream:
    """Build the stream of a source's training rows; its validation rows are a split of their own.

    Args:
        data: the recipe's data section.
        columns: canonical columns of the task family.
        read: returns a checked row, or None to leave it out.
        batch_size: rows of a batch; a buffer has `SORT_WINDOW` batches.

    Raises:
        DataError: no training rows, or no validation split.
        RecipeError: the demo data, or ``data.format`` names no format.
    """
    shards = _find_shards(data)

    def begin() -> Iterator[tuple[int, Row]]:
        return islice(chain.from_iterable(_read_shard(shard, data, columns, read) for shard in shards), data.limit)

    return RowStream(shards[0].source, begin, SORT_WINDOW * batch_size)


def _read_shard(shard: _Shard, data: Data, columns: Columns, read: Read) -> Iterator[tuple[int, Row]]:
    records, data = with_span_columns(shard.open(), data, columns)
    for line, values, row in canonical_records(records, data, columns, shard.source):
        with placed(shard.source, line, data, values):
            checked = None if is_dropped(values, row, data, columns) else read(row)
        if checked is not None:
            yield line, checked


def _find_shards(data: Data) -> list[_Shard]:
    """Find the files (or the hub's split) with training rows."""
    find_format(data.format)
    if data.source == "demo":
        raise RecipeError("demo rows are not streamed", "leave data.streaming out")
    if data.rows is not None:
        raise RecipeError("the rows are in memory already", "leave data.streaming out")
    check_source(data)
    file = single_file(data)
    files = {"train": [file]} if file else files_by_split(data)
    if files is None:
        split = data.splits.get("train", "train")
        return [_Shard(f"{data.source}:{split}", partial(read_hub_split, data, split))]
    if "train" not in files:
        raise DataError(f"no train split (found: {', '.join(files)})", "name it in data.splits or data.files")
    if not any(map(is_validation, files)):
        what = "nothing is held out from a stream: the validation rows need a file of their own"
        raise DataError(what, "--set data.files.validation=FILE", file=data.source or files["train"][0])
    return [_Shard(str(file), partial(read_records, file, data)) for file in files["train"]]
