"""A table of scores over models and tasks in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from bertkit.metrics.paired import LEVEL
from bertkit.reports.text import ONE_SEED, escape_markdown

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_FIELDS = (
    "model",
    "task",
    "metric",
    "score",
    "low",
    "high",
    "seeds",
    "standard_deviation",
    "difference",
    "p",
    "folder",
)


def make_grid(
    table: Any, mark_best: Callable[[str], str] = str, star: str = "*", plus_minus: str = "±"
) -> list[list[str]]:
    """Format the header and the rows of a `bertkit.workflows.table.RunsTable`."""
    head = ["model", *(f"{task} {metric}" for task, metric in table.tasks)]

    def format_cell(row: str, task: tuple[str, str]) -> str:
        cell = table.cell(row, task)
        if cell is None or cell.score is None:
            return "-" if cell is None else "n/a"
        score = f"{cell.score:.4f}"
        text = mark_best(score) if cell.is_best else score
        text += star if cell.p is not None and cell.p < LEVEL else ""
        text += "" if cell.standard_deviation is None else f" {plus_minus} {cell.standard_deviation:.4f}"
        return text + ("" if cell.interval is None else f" ({cell.interval[0]:.4f} to {cell.interval[1]:.4f})")

    return [head, *([row, *(format_cell(row, task) for task in table.tasks)] for row in table.rows)]


def describe_marks(table: Any) -> list[str]:
    """Return a sentence per mark in a table that explains the mark."""
    lines = []
    if any(cell.interval for cell in table.cells):
        lines.append("In parentheses: the 95% interval.")
    if any(cell.standard_deviation is not None for cell in table.cells):
        lines.append("Mean ± standard deviation over seeds.")
    tests = dict.fromkeys(cell.difference.test for cell in table.cells if cell.difference is not None)
    if tests:
        holm = ", after Holm's correction" if any(c.difference and c.difference.p_holm for c in table.cells) else ""
        lines.append(f"*: differs from {table.rows[0]} at p < {LEVEL:g} ({', '.join(tests)}){holm}.")
        lines += [ONE_SEED] if any(cell.difference and cell.seeds == 1 for cell in table.cells) else []
    return lines


def to_markdown(table: Any) -> str:
    """Write a table in Markdown; the best score of each task is bold."""
    # An unescaped star after bold text would be read as the start of emphasis.
    head, *rows = make_grid(table, mark_best=lambda score: f"**{score}**", star="\\*")
    names = [[escape_markdown(row[0]), *row[1:]] for row in rows]
    lines = [list(map(escape_markdown, head)), ["---", *["---:"] * len(table.tasks)], *names]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return text + "".join(f"\n{escape_markdown(line)}\n" for line in [*describe_marks(table), *table.notes])


def to_latex(table: Any) -> str:
    """Write a table in LaTeX, with the rules of booktabs; the best score of each task is bold."""
    grid = make_grid(table, mark_best=lambda score: rf"\textbf{{{score}}}", star="$^{*}$", plus_minus=r"$\pm$")
    head, *rows = [[_escape_latex(line[0]), *line[1:]] for line in grid]
    head = [_escape_latex(name) for name in head]
    body = "".join(f"{' & '.join(line)} \\\\\n" for line in rows)
    comments = "".join(f"% {line}\n" for line in [*describe_marks(table), *table.notes])
    columns = "l" + "r" * len(table.tasks)
    return (
        f"{comments}\\begin{{tabular}}{{{columns}}}\n\\toprule\n{' & '.join(head)} \\\\\n\\midrule\n{body}"
        "\\bottomrule\n\\end{tabular}\n"
    )


def to_csv(table: Any) -> str:
    """Write a table as CSV with all digits, one line per model and task."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_FIELDS)
    for cell in table.cells:
        low, high = cell.interval or (None, None)
        difference = None if cell.difference is None else cell.difference.difference
        values = (cell.seeds, cell.standard_deviation, difference, cell.p, cell.folder)
        writer.writerow([cell.row, cell.task, cell.metric, cell.score, low, high, *values])
    return stream.getvalue()


def _escape_latex(text: str) -> str:
    r"""Escape the characters that LaTeX interprets.

    >>> print(_escape_latex(r"a_b & 5% \x"))
    a\_b \& 5\% \textbackslash{}x
    """
    return re.sub(r"[\\~^]|[&%$#_{}]", lambda match: _LATEX.get(match[0], f"\\{match[0]}"), text)


FORMATS: dict[str, tuple[Sequence[str], Callable[[Any], str]]] = {
    "markdown": ((".md",), to_markdown),
    "latex": ((".tex",), to_latex),
    "csv": ((".csv",), to_csv),
}
"""Format -> file name extensions, and function that formats a table."""
