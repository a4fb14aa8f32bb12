"""Printed results: lines and tables for people, one JSON object for programs."""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertkit.cli import terminal
from bertkit.cli.terminal import CONTROL_CHARACTERS, printable
from bertkit.errors import BertkitError
from bertkit.reports.text import p_text
from bertkit.storage import files
from bertkit.storage.runs import is_main_process

if TYPE_CHECKING:
    from bertkit.reports.cases import Case

_SCHEMA_VERSION = 2  # changes if --json prints other keys
_MIN_TEXT_WIDTH = 16  # characters, for the first column of a table
_PIPE_WIDTH = 1_000_000  # characters; no line is longer
_INDENT = "    "

Cells = Sequence[Sequence[str]]


def terminal_width() -> int | None:
    """Return the width of the terminal in characters, or None if stdout is a file or a pipe, which wrap no lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_line(line: str = "") -> None:
    """Print a line on stdout; in a distributed launch, only the first process prints."""
    if is_main_process():
        sys.stdout.write(printable(line) + "\n")


def print_text(line: str) -> None:
    """Print a text in one line; in a narrow terminal, wrap it between words and indent it."""
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


def print_notes(notes: Iterable[str]) -> None:
    """Print indented notes below a line or a table, one per line."""
    for note in notes:
        print_text(f"  {note}")


def print_with_gates(result: Any, show: Callable[[Any], object], gates: Sequence[Case], **page: Any) -> None:
    """Print a result as `print_result` does, and its gates; exit with code 8 if a gate fails."""
    from bertkit.reports.cases import failed_gates_error

    def show_with_gates(value: Any) -> None:
        show(value)
        for case in gates:
            print_text(f"  gate {case.outcome}: {case.group}, {case.name}: {case.text}")

    print_result(result, show_with_gates, error=failed_gates_error(gates), **page)


def print_next(*commands: str) -> None:
    """Print the commands that a user may want to run next."""
    print_line("\nNext:")
    for command in commands:
        print_line(f"  {command}")


def print_plan(values: Mapping[str, str]) -> None:
    """Print the plan of a command: a line per value that is not empty, after its name of at most eight letters."""
    for name, value in values.items():
        if value:
            print_text(f"{name:<8} {value}")


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object with the status of a finished command; NaN and infinity become null."""
    print_line(to_json({"schema_version": _SCHEMA_VERSION, "status": "done", **values}))


def print_result(
    result: Any,
    show: Callable[[Any], object],
    *,
    page: Path | None = None,
    write: Callable[[Path, Any], object] | None = None,
    error: BertkitError | None = None,
) -> None:
    """Print a result as one JSON object with --json, or else with `show`, and raise its error.

    Args:
        result: Dataclass or mapping; its fields become keys of the object.
        show: Function that prints the result for people.
        page: File of a page about the result, whose name is printed last.
        write: Function that writes the page; None if the page exists already.
        error: Error of the command; with --json, it is printed in the same object.

    Raises:
        BertkitError: If there is an error, without --json.
        typer.Exit: If there is an error, with --json; it has the exit code of the error.
    """
    if page is not None and write is not None:
        from bertkit.storage.outputs import check_page, lock_output

        # The page is written first, because the printed object contains its name.
        with lock_output(page):
            check_page(page)  # Another process may have written it since the first check.
            write(page, result)
    if terminal.is_json_wanted():
        # A program parses stdout as one object, also after an error.
        values = to_plain(result) | ({} if page is None else {"file": str(page)})
        if error is None:
            print_json(values)
            return
        import typer

        print_json({**values, "status": "error", "error": error.as_dict()})
        logging.getLogger("bertkit").error(f"error: {error}")
        raise typer.Exit(error.exit_code)
    show(result)
    if page is not None:
        print_line(f"{page}: written")
        print_next(f"open {page}")
    if error is not None:
        raise error


def to_plain(value: Any) -> Any:
    """Convert dataclasses and named tuples to dictionaries, also inside dictionaries and lists."""
    # Named tuples come first, because they are also sequences.
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, (Sequence, Iterator)) and not isinstance(value, (str, bytes)):
        return list(map(to_plain, value))
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def print_records(
    title: str,
    records: Iterable[dict[str, Any]],
    output: Path | None = None,
    inputs: Iterable[tuple[str, Path]] = (),
) -> None:
    """Print records as JSON lines as they are computed or, with --json, as one JSON object under the title.

    With `output`, write them to that file instead, which must not be an input; see `bertkit.data.output.write_new`.
    """
    if output is not None:
        from bertkit.data.output import write_new

        print_file(output, write_new(records, output, inputs))
    elif terminal.is_json_wanted():
        print_json({title: list(records)})
    else:
        for record in records:
            print_line(to_json(record))
            if not terminal.is_read():  # as in `bertkit predict ... | head`
                return


def to_json(values: Mapping[str, Any]) -> str:
    """Return values as one line of strict JSON; NaN and infinity become null.

    >>> to_json({"loss": math.nan, "word": "é"})
    '{"loss": null, "word": "é"}'
    """
    # JSON does not require escapes for all control characters, but a terminal would interpret them.
    return CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", files.to_json(values))


def print_pairs(values: Mapping[str, str]) -> None:
    """Print names and values in two columns."""
    if not values:
        return
    for line in _align(list(values.items()), "left", wrapped_column=1, width=terminal_width() or _PIPE_WIDTH):
        print_line(line)


def print_table(title: str, rows: Sequence[Mapping[str, Any]], max_rows: int = 30) -> None:
    """Print a table whose first column is aligned left, and the others right.

    Empty columns are left out, and an empty table is not printed. In a narrow terminal, the first column wraps, or each
    row becomes a list.

    Args:
        title: Line above the table.
        rows: Column -> text, count, score, interval, or None for a missing number.
        max_rows: Maximum number of printed rows.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in columns if any(row.get(name, "") != "" for row in rows)]
    if not names:
        return
    from rich.cells import cell_len

    cells = [names, *([_cell(row.get(name, "")) for name in names] for row in rows[:max_rows])]
    print_text(f"  {title}")
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    # Numbers do not wrap, so only the first column can become narrower. Columns are two spaces apart.
    min_width = min(widths[0], _MIN_TEXT_WIDTH) + sum(2 + width for width in widths[1:])
    width = (terminal_width() or _PIPE_WIDTH) - len(_INDENT)
    for line in _list_rows(cells) if min_width > width else _align(cells, "right", wrapped_column=0, width=width):
        print_text(f"{_INDENT}{line}")
    if len(rows) > max_rows:
        print_line(f"{_INDENT}... {len(rows) - max_rows:,} more with --json")


def print_file(file: Path, rows: int, next_command: str = "") -> None:
    """Print the file that a command wrote, and its number of rows or the next command."""
    if terminal.is_json_wanted():
        print_json({"file": str(file), "rows": rows})
    elif next_command:
        print_line(f"{file}: written")
        print_next(next_command)
    else:
        print_line(f"{file}: {format_rows(rows)}")


def format_count(count: int, unit: str) -> str:
    """Return a count with its unit.

    >>> format_count(1, "seed"), format_count(1200, "seed")
    ('1 seed', '1,200 seeds')
    """
    return f"{count:,} {unit if count == 1 else unit + 's'}"


format_rows = partial(format_count, unit="row")


def format_splits(rows: Mapping[str, int]) -> str:
    """Return the number of rows of each split.

    >>> format_splits({"train": 1200, "test": 300})
    'train 1,200, test 300'
    """
    return ", ".join(f"{split} {count:,}" for split, count in rows.items())


def format_number(value: float | None) -> str:
    """Return a score.

    >>> format_number(0.5), format_number(-128.5), format_number(None)
    ('0.5000', '-128.500', 'n/a')
    """
    # An undefined score, such as the correlation of constant predictions, is NaN, and null in JSON.
    if value is None or not math.isfinite(value):
        return "n/a"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.3f}"


def format_difference(value: float) -> str:
    """Return a difference with its sign.

    >>> format_difference(0.5), format_difference(math.nan)
    ('+0.5000', 'n/a')
    """
    return f"{value:+.4f}" if math.isfinite(value) else "n/a"


def format_interval(interval: Sequence[float] | None) -> str:
    """Return the bounds of an interval.

    >>> format_interval((0.25, 1.0)), format_interval(None)
    ('0.2500 to 1.0000', 'n/a')
    """
    return "n/a" if interval is None else " to ".join(map(format_number, interval))


def format_score(score: float | None, interval: Sequence[float] | None) -> str:
    """Return a score and its interval.

    >>> format_score(0.5, (0.25, 1.0))
    '0.5000 (0.2500 to 1.0000)'
    """
    return f"{format_number(score)} ({format_interval(interval)})"


def difference_cells(difference: Any) -> dict[str, str]:
    """Return the cells of a difference (a record of `difference`, `interval`, `p`, `p_holm`), or no cells for None."""
    if difference is None:
        return {}
    values = difference if isinstance(difference, Mapping) else vars(difference)
    return {
        "difference": format_difference(values["difference"]),
        "95% CI": format_interval(values["interval"]),
        "p": p_text(values["p"]),
        # Holm's correction (1979) is only for several tests; for a single test, the column is left out.
        "p (Holm)": "" if values["p_holm"] is None else p_text(values["p_holm"]),
    }


def size_cells(name: str, model: Any, unit: str = "row") -> dict[str, Any]:
    """Return the cells of a model's size and, if it was measured, its speed; the model is a record or a mapping."""
    values = model if isinstance(model, Mapping) else vars(model)
    size = {"model": name, "parameters": values["parameters"], "MB": f"{values['disk_bytes'] / 1e6:,.1f}"}
    if values["row_seconds"] is None:
        return size
    speed = values["rows_per_second"]
    return {
        **size,
        f"ms/{unit}": f"{1000 * values['row_seconds']:,.2f}",
        f"{unit}s/s": f"{speed:,.0f}" if speed >= 100 else f"{speed:,.1f}",
    }


def group_by_reason(reasons: Mapping[Any, str | None]) -> dict[str, list[str]]:
    """Return reason -> names with this reason; names without a reason are left out.

    >>> group_by_reason({1: "nan", 2: "", 3: "nan"})
    {'nan': ['1', '3']}
    """
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if reason:
            names_by_reason.setdefault(reason, []).append(str(name))
    return names_by_reason


def _align(cells: Cells, justify: Literal["left", "right"], *, wrapped_column: int, width: int) -> Iterator[str]:
    """Yield the lines of a table; one column wraps if the table is too wide.

    Args:
        cells: Rows of cells.
        justify: Alignment of all columns except the first, which is aligned left.
        wrapped_column: Index of the column that can wrap.
        width: Maximum number of characters per line.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for index in range(len(cells[0])):
        table.add_column(justify=justify if index else "left", overflow="fold", no_wrap=index != wrapped_column)
    for row in cells:
        table.add_row(*(Text(printable(_one_line(cell))) for cell in row))
    # rich only computes the layout; the lines are printed without rich, so that pipes get the same text.
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as lines:
        console.print(table)
    for line in lines.get().split("\n")[:-1]:
        yield line.rstrip()


def _list_rows(cells: Cells) -> Iterator[str]:
    """Yield the lines of each row as a list of its cells, below the first cell as a title."""
    for title, *values in cells[1:]:
        yield title
        for name, value in zip(cells[0][1:], values, strict=True):
            if value:
                yield f"  {name}: {value}" if name else f"  {value}"


def _cell(value: object) -> str:
    if isinstance(value, float) or value is None:
        return format_number(value)
    if isinstance(value, (tuple, list)):
        return format_interval(value)
    return f"{value:,}" if isinstance(value, int) else _one_line(str(value))


def _one_line(text: str) -> str:
    """Return a text with a space instead of each line break and the spaces around it."""
    return re.sub(r"\s*[\r\n]\s*", " ", text)
