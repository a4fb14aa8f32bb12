"""One text per line; no ending shows it, since a ``.txt`` file may hold CoNLL columns too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bertkit.data.formats import Format
from bertkit.data.text import Record, Source, empty_file, read_lines, refuse_nul, source_column
from bertkit.recipe.records import Data


def read(source: Source, data: Data, name: str) -> Iterator[Record]:
    """Yield each line as a text, blank lines too, except those after the last text."""
    return parse(read_lines(source, data.encoding, name), data, name)


def parse(lines: Iterable[str], data: Data, name: str) -> Iterator[Record]:
    """Yield each line as a text under the source's name of the column ``text``.

    Raises:
        DataError: a line has a NUL character, or all lines are blank.
    """
    column, row = source_column("text", data), 0
    blank: list[Record] = []  # held back until a text follows them
    for row, line in enumerate(lines, 1):
        refuse_nul(line, name, row)
        blank.append((row, {column: line.rstrip("\r\n")}))
        if line.strip():
            yield from blank
            blank = []
    if len(blank) == row:
        raise empty_file(name)


FORMAT = Format("lines", read)
