"""How predictions are laid out in a file: which columns, and in csv and tsv delimiter, encoding and digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertkit.data.formats import find_format, format_of
from bertkit.data.formats.csv import find_dialect, parse_delimiter
from bertkit.errors import UsageError
from bertkit.recipe import Data, typed_path

SEPARATED = {".csv": ",", ".tsv": "\t"}
"""Ending of the files with lines of cells, which spreadsheets read -> their delimiter."""

_DIGITS = 4


@dataclass(frozen=True)
class FileLayout:
    """What a user asks of a file of predictions; None is what its ending and the file with the rows say."""

    columns: Sequence[str] = ()
    """Those to write, in this order; all, if there are none."""
    delimiter: str | None = None
    encoding: str | None = None
    digits: int | None = None
    """Decimals of the numbers that are predicted."""
    escape_formulas: bool = False
    """Put a ' before text that a spreadsheet would take for a formula."""


PLAIN = FileLayout()


def check_layout(asked: FileLayout, output: Path) -> FileLayout:
    """Return a layout with the digits of a file, and with its delimiter if it was named.

    Raises:
        UsageError: it has what is for csv and tsv alone, or no text can be written so.
    """
    options = {
        "--delimiter": asked.delimiter is not None,
        "--encoding": asked.encoding is not None,
        "--digits": asked.digits is not None,
        "--escape-formulas": asked.escape_formulas,
    }
    if output.suffix not in SEPARATED:
        for option in (name for name, is_given in options.items() if is_given):
            raise UsageError(f"{option} with --output {output}", f"it is for {' and '.join(SEPARATED)} only")
        return asked
    if asked.encoding is not None:
        try:
            " ".encode(asked.encoding)
        except (LookupError, ValueError):
            hint = "e.g. utf-8, utf-8-sig (with the mark that Excel looks for) or cp1252"
            raise UsageError(f"--encoding: no text encoding is called {asked.encoding!r}", hint) from None
    delimiter = None if asked.delimiter is None else parse_delimiter(asked.delimiter, "--delimiter")
    return replace(asked, delimiter=delimiter, digits=_DIGITS if asked.digits is None else asked.digits)


def follow_source(layout: FileLayout, output: Path, source: str | Path | None, data: Data) -> FileLayout:
    """Return a layout with the encoding, and for the same ending the delimiter, of the file with the rows."""
    if source is None or str(source) == "-" or output.suffix not in SEPARATED:
        return layout
    file = typed_path(source)
    source_format = find_format(data.format) or format_of(file.name)[0]
    if source_format is None or f".{source_format.name}" not in SEPARATED:
        return layout
    delimiter, encoding = find_dialect(file, data)
    if f".{source_format.name}" != output.suffix:
        delimiter = SEPARATED[output.suffix]
    return replace(layout, delimiter=layout.delimiter or delimiter, encoding=layout.encoding or encoding)
