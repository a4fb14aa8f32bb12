"""What commands share to print results: lines and tables for people, one JSON object for programs."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.storage import files
from bertkit.storage.runs import is_main_process

WIDTH = 80  # columns
_SCHEMA = 2


def print_line(line: str = "") -> None:
    """Print a line on stdout; of the processes of a distributed launch, only the first prints."""
    if is_main_process():
        sys.stdout.write(line + "\n")


def print_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object with the status of a finished command; NaN and infinity become null."""
    print_line(to_json({"schema_version": _SCHEMA, "status": "done", **values}))


def to_json(values: Mapping[str, Any]) -> str:
    """Return values as one line of strict JSON; NaN and infinity become null.

    >>> to_json({"loss": math.nan, "word": "é"})
    '{"loss": null, "word": "é"}'
    """
    return files.to_json(values)


def print_pairs(title: str, values: Mapping[str, str], *, as_json: bool) -> None:
    """Print names and values in two columns, or as one JSON object under the title."""
    if as_json:
        print_json({title: values})
        return
    width = max(map(len, values), default=0)
    for name, value in values.items():
        first, *more = textwrap.wrap(value, WIDTH - width - 2, break_on_hyphens=False) or [""]
        print_line(f"{name:<{width}}  {first}".rstrip())
        for line in more:
            print_line(f"{'':<{width}}  {line}")


def print_table(title: str, rows: Sequence[Mapping[str, Any]], max_rows: int = 30) -> None:
    """Print a table with its first column aligned left and the others right; nothing if there are no rows."""
    if not rows:
        return
    lines = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows[:max_rows])]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print_line(f"  {title}")
    for first, *others in lines:
        print_line("    " + "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip())
    if len(rows) > max_rows:
        print_line(f"    ... {len(rows) - max_rows:,} more with --json")


def print_file(file: Path, rows: int, *, as_json: bool, next_command: str = "") -> None:
    """Print which file a command wrote, and how many rows it has or which command to run next."""
    if as_json:
        print_json({"file": str(file), "rows": rows})
    elif next_command:
        print_line(f"{file}: written\n\nNext:\n  {next_command}")
    else:
        print_line(f"{file}: {rows:,} {'row' if rows == 1 else 'rows'}")


def format_number(value: float) -> str:
    """Return a score in seven characters.

    >>> format_number(0.5), format_number(-128.5), format_number(math.nan)
    (' 0.5000', '-128.500', '    n/a')
    """
    if not math.isfinite(value):
        return "    n/a"
    return f"{value:7.4f}" if abs(value) < 100 else f"{value:7.3f}"


def format_interval(interval: Sequence[float]) -> str:
    """Return an interval as its two ends.

    >>> format_interval((0.25, 1.0))
    '0.2500 to 1.0000'
    """
    return " to ".join(format_number(end).strip() for end in interval)


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


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return format_number(value).strip()
    return f"{value:,}" if isinstance(value, int) else str(value)
