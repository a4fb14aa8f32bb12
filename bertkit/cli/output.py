"""What commands share to print results: lines and tables for people, one JSON object for programs."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bertkit.cli import stdio
from bertkit.storage import files
from bertkit.storage.runs import is_main_process

if TYPE_CHECKING:
    from bertkit.errors import BertkitError

_SCHEMA = 2
# C0 without tab and line feed, DEL, C1, marks that reorder text or end a line, halves of surrogate pairs
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LEAST_TEXT = 16  # columns, of a text beside its name

Cells = Sequence[Sequence[str]]


def terminal_width() -> int | None:
    """Return the columns of the terminal that stdout is; None for a file or a pipe, where no line is wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_line(line: str = "") -> None:
    """Print a line on stdout; of the processes of a distributed launch, only the first prints."""
    if is_main_process():
        sys.stdout.write(printable(line) + "\n")


def printable(text: str) -> str:
    r"""Return text with an escape for each character that a terminal would obey, or that cannot be written.

    >>> printable("a\tb\x1b[31m\x9b1mé")
    'a\tb\\x1b[31m\\x9b1mé'
    """
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def print_text(line: str) -> None:
    """Print a text in one line, which a terminal may wrap: between words only, and with the rest indented."""
    line = _one_line(line)
    width = terminal_width()
    if width is None or len(line) <= width:
        print_line(line)
        return
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    for part in textwrap.wrap(
        line, width, subsequent_indent=indent, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    ):
        print_line(part)


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object with the status of a finished command; NaN and infinity become null."""
    print_line(to_json({"schema_version": _SCHEMA, "status": "done", **values}))


def end_with_error(values: Mapping[str, Any], error: BertkitError) -> NoReturn:
    """Print what a command has found all the same and its error, as one JSON object, and end with the error's code."""
    import typer

    print_json({**values, "status": "error", "error": error.as_dict()})
    logging.getLogger("bertkit").error(f"error: {error}")
    raise typer.Exit(error.exit_code)


def print_records(title: str, records: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print records as JSON lines as they come, or all of them in one JSON object under the title."""
    if as_json:
        print_json({title: list(records)})
        return
    for record in records:
        print_line(to_json(record))
        if not stdio.is_read():  # as in `bertkit predict ... | head`
            return


def to_json(values: Mapping[str, Any]) -> str:
    """Return values as one line of strict JSON; NaN and infinity become null.

    >>> to_json({"loss": math.nan, "word": "é"})
    '{"loss": null, "word": "é"}'
    """
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", files.to_json(values))


def print_pairs(title: str, values: Mapping[str, str], *, as_json: bool) -> None:
    """Print names and values in two columns, or as one JSON object under the title."""
    if as_json:
        print_json({title: values})
        return
    width, columns = max(map(len, values), default=0), terminal_width()
    for name, value in values.items():
        room = len(value) + 1 if columns is None else max(columns - width - 2, _LEAST_TEXT)
        first, *more = textwrap.wrap(value, room, break_on_hyphens=False) or [""]
        print_line(f"{name:<{width}}  {first}".rstrip())
        for line in more:
            print_line(f"{'':<{width}}  {line}")


def print_table(title: str, rows: Sequence[Mapping[str, Any]], max_rows: int = 30) -> None:
    """Print a table with its first column aligned left and the others right; nothing if there are no rows.

    In a terminal that is too narrow, the first column wraps; where that is not enough, each row becomes a list.
    """
    if not rows:
        return
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows[:max_rows])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = terminal_width()
    print_text(f"  {title}")
    if room is None or _table_width(widths) <= room:
        lines = _plain_lines(cells, widths)
    elif (least := _table_width([_LEAST_TEXT, *widths[1:]])) <= room:
        lines = _wrapped_lines(cells, [_LEAST_TEXT + room - least, *widths[1:]])
    else:
        lines = [f"    {line}" for row in cells[1:] for line in _listed(cells[0], row)]
    for line in lines:
        print_text(line)
    if len(rows) > max_rows:
        print_line(f"    ... {len(rows) - max_rows:,} more with --json")


def print_highlighted(words: Iterable[tuple[str, float]]) -> None:
    """Print a text whose words are green for positive values and red for negative ones, the stronger the larger.

    Only a terminal shows colors; elsewhere nothing is printed.
    """
    from rich.console import Console
    from rich.text import Text

    if terminal_width() is None or not is_main_process():
        return
    valued = list(words)
    most = max((abs(value) for _, value in valued), default=0.0) or 1.0
    line = Text("    ")
    for word, value in valued:
        share = abs(value) / most
        color = "green" if value > 0 else "red"
        line.append(printable(word), style=f"bold {color}" if share > 0.5 else color if share > 0.1 else "")
        line.append(" ")
    Console(highlight=False).print(line, soft_wrap=False)


def print_file(file: Path, rows: int, *, as_json: bool, next_command: str = "") -> None:
    """Print which file a command wrote, and how many rows it has or which command to run next."""
    if as_json:
        print_json({"file": str(file), "rows": rows})
    elif next_command:
        print_line(f"{file}: written\n\nNext:\n  {next_command}")
    else:
        print_line(f"{file}: {format_rows(rows)}")


def print_found(found: Any, page: Path | None, show: Callable[[], None], *, as_json: bool) -> None:
    """Print the fields of a dataclass as JSON, or what `show` prints; then the page, if one was written about it."""
    if as_json:
        print_json(dataclasses.asdict(found) | ({} if page is None else {"file": str(page)}))
        return
    show()
    if page is not None:
        print_file(page, 0, as_json=False, next_command=f"open {page}")


def format_rows(rows: int) -> str:
    """Return a number of rows.

    >>> format_rows(1), format_rows(1200)
    ('1 row', '1,200 rows')
    """
    return f"{rows:,} {'row' if rows == 1 else 'rows'}"


def format_number(value: float | None) -> str:
    """Return a score in seven characters.

    >>> format_number(0.5), format_number(-128.5), format_number(None)
    (' 0.5000', '-128.500', '    n/a')
    """
    if value is None or not math.isfinite(value):
        return "    n/a"
    return f"{value:7.4f}" if abs(value) < 100 else f"{value:7.3f}"


def format_interval(interval: Sequence[float] | None) -> str:
    """Return an interval as its two ends.

    >>> format_interval((0.25, 1.0)), format_interval(None)
    ('0.2500 to 1.0000', 'n/a')
    """
    return "n/a" if interval is None else " to ".join(format_number(end).strip() for end in interval)


def format_duration(seconds: float | None) -> str:
    """Return seconds with the units that people use; a dash for an unknown duration.

    >>> format_duration(4.25), format_duration(200), format_duration(7500), format_duration(None)
    ('4.2 s', '3 min 20 s', '2 h 05 min', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _plain_lines(cells: Cells, widths: Sequence[int]) -> list[str]:
    return [
        "    " + "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip()
        for first, *others in cells
    ]


def _wrapped_lines(cells: Cells, widths: Sequence[int]) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for number, width in enumerate(widths):
        table.add_column(justify="right" if number else "left", overflow="fold", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(width=_table_width(widths), color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return [f"    {line}".rstrip() for line in captured.get().splitlines()]


def _listed(names: Sequence[str], row: Sequence[str]) -> list[str]:
    """Write a row as a list of its cells, the first as its title."""
    cells = zip(names[1:], row[1:], strict=True)
    return [row[0], *(f"  {name}: {value}" if name else f"  {value}" for name, value in cells if value)]


def _table_width(widths: Sequence[int]) -> int:
    """Return the columns of the terminal that a table takes, four of which are its indent."""
    return 4 + sum(widths) + 2 * (len(widths) - 1)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return format_number(value).strip()
    return f"{value:,}" if isinstance(value, int) else _one_line(str(value))


def _one_line(text: str) -> str:
    """Return a text with a space for each break between its lines, and for the spaces around it."""
    return re.sub(r"\s*[\r\n]\s*", " ", text)
