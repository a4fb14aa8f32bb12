"""Progress on stderr: a live bar in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bertkit.cli.stdio import is_quiet, printable
from bertkit.hardware.threads import CoreWatch
from bertkit.reports.text import duration_text
from bertkit.storage.runs import is_main_process

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.progress import Progress, Task

_INTERVAL = 10.0  # seconds between lines where stderr is no terminal
# in terminals of at least so many columns; in narrower ones the numbers need them
_BAR_WIDTHS = {100: 12, 60: 6}


class TerminalProgress:
    """Shows how far each stage of the work is; silent in all but the first process of a distributed launch."""

    def __init__(self) -> None:
        self.outer: list[tuple[str, int, int, float]] = []
        """The open stages, outermost first: name, total steps, steps done before the start, time of the start."""
        self.bar: Any = None
        self.last_line = 0.0
        self.cores = CoreWatch()

    @cached_property  # asked for when the first stage begins, after the options of the command line are read
    def shows(self) -> bool:
        """Whether this process shows anything."""
        return is_main_process() and not is_quiet()

    @cached_property
    def live(self) -> bool:
        """Whether bars move; a hosted runner may have a terminal, but its log keeps every frame."""
        is_watched = os.environ.get("TERM") != "dumb" and os.environ.get("CI", "").lower() in ("", "0", "false")
        return self.shows and sys.stderr.isatty() and is_watched

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin a stage of `total` steps, of which `done` are done; stages may be nested."""
        what = printable(what)  # it may have the name of a file
        # `done` is what a resumed run has behind it: it is in the count, and not in the estimate of the time left.
        self.outer.append((what, total, done, time.monotonic()))
        self.last_line = time.monotonic()
        if self.live:
            self.bar = self.bar or _open_bar()
            self.bar.add_task(
                what, total=total if total > 1 else None, completed=done, count=_steps(done, total), figures=_Figures()
            )
        elif self.shows and not total:
            sys.stderr.write(f"{what} ...\n")

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Show how many steps of the innermost stage are done, with some figures."""
        self.cores.look()
        what, total, before, began = self.outer[-1]
        texts = [f"{name} {_format_figure(value)}" for name, value in figures.items()]
        if self.live:
            task = self.bar.task_ids[-1]
            self.bar.update(task, completed=done, count=_steps(done, total), figures=_Figures(texts))
        elif self.shows and time.monotonic() - self.last_line >= _INTERVAL:
            self.last_line = time.monotonic()
            # A log gets a line every ten seconds, and never one per step.
            left = (self.last_line - began) / max(done - before, 1) * (total - done)
            sys.stderr.write("  ".join([f"{what}: {_steps(done, total)}", *texts, f"eta {duration_text(left)}"]) + "\n")

    def record(self, entry: Mapping[str, Any]) -> None:
        """Show nothing: figures have the last loss and score."""

    def finish(self) -> None:
        """End the innermost stage."""
        self.cores.look()
        if self.outer:
            self.outer.pop()
            if self.live:
                self.bar.remove_task(self.bar.task_ids[-1])
        if self.bar is not None and not self.outer:
            self.bar.stop()
            self.bar = None


class _Figures:
    """Figures in one line: as many of them, from the first, as fit into the columns that the other numbers leave."""

    def __init__(self, figures: Sequence[str] = ()) -> None:
        self.figures = figures

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(0, len("  ".join(self.figures)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Figures are dropped from the end, so callers give the most important one first.
        shown = list(self.figures)
        while shown and len("  ".join(shown)) > options.max_width:
            shown.pop()
        yield "  ".join(shown)


def _open_bar() -> Progress:
    """Open the bar, whose name, count and time left are always shown; the figures get what is left of the line."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            return Text("") if task.total is None else Text.assemble("eta ", super().render(task))

    class FiguresColumn(ProgressColumn):
        def render(self, task: Task) -> Any:
            return task.fields["figures"]

    def whole() -> Column:
        return Column(no_wrap=True)

    console = Console(stderr=True)
    widths = [width for columns, width in _BAR_WIDTHS.items() if console.width >= columns]
    bar = Progress(
        TextColumn("{task.description}", markup=False, table_column=whole()),
        *(BarColumn(width, table_column=whole()) for width in widths[:1]),
        TextColumn("{task.fields[count]}", table_column=whole()),
        Left(compact=True, table_column=whole()),
        FiguresColumn(),
        console=console,
        transient=True,
    )
    bar.start()
    return bar


def _steps(done: int, total: int) -> str:
    return f"{done:,}/{total:,}" if total > 1 else ""


def _format_figure(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
