"""Progress on stderr: a live bar in a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from bertkit.cli.output import format_duration
from bertkit.storage.runs import is_main_process

_INTERVAL = 10.0  # seconds between lines where stderr is no terminal


class TerminalProgress:
    """Shows how far each stage of the work is; silent in all but the first process of a distributed launch."""

    def __init__(self) -> None:
        self.shows = is_main_process()
        self.live = self.shows and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.outer: list[tuple[str, int, int, float]] = []
        """The open stages, outermost first: name, total steps, steps done before the start, time of the start."""
        self.bar: Any = None
        self.last_line = 0.0

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin a stage of `total` steps, of which `done` are done; stages may be nested."""
        self.outer.append((what, total, done, time.monotonic()))
        self.last_line = time.monotonic()
        if self.live:
            self._open_bar()
            self.bar.add_task(what, total=total, completed=done, figures="")

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Show how many steps of the innermost stage are done, with some figures."""
        what, total, before, began = self.outer[-1]
        text = "  ".join(f"{name} {_format(value)}" for name, value in figures.items())
        if self.live:
            self.bar.update(self.bar.task_ids[-1], completed=done, figures=text)
        elif self.shows and time.monotonic() - self.last_line >= _INTERVAL:
            self.last_line = time.monotonic()
            left = (self.last_line - began) / max(done - before, 1) * (total - done)
            fields = [f"{what}: {done:,}/{total:,}", text, f"eta {format_duration(left)}"]
            sys.stderr.write("  ".join(field for field in fields if field) + "\n")

    def finish(self) -> None:
        """End the innermost stage."""
        if self.outer:
            self.outer.pop()
        if self.live:
            self.bar.remove_task(self.bar.task_ids[-1])
            if not self.outer:
                self.bar.stop()
                self.bar = None

    def _open_bar(self) -> None:
        if self.bar is not None:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        self.bar.start()


def _format(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
