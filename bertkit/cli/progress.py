"""A progress line on stderr: alive in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from bertkit.storage.runs import is_main_process

_QUIET = 10.0  # seconds between lines where there is no terminal


class TerminalProgress:
    """Shows one stretch of work at a time; nothing where another process of the launch shows it."""

    def __init__(self) -> None:
        self.shows = is_main_process()
        self.live = self.shows and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.outer: list[tuple[str, int, int, float]] = []
        self.bar: Any = None
        self.said = 0.0

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin a stretch; one inside another hides the outer one until it ends."""
        self.outer.append((what, total, done, time.monotonic()))
        self.said = time.monotonic()
        if self.live:
            self._open_bar()
            self.task = self.bar.add_task(what, total=total, completed=done, figures="")

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Show how far the work is."""
        what, total, before, began = self.outer[-1]
        text = "  ".join(f"{name} {_short(value)}" for name, value in figures.items())
        if self.live:
            self.bar.update(self.bar.task_ids[-1], completed=done, figures=text)
        elif self.shows and time.monotonic() - self.said >= _QUIET:
            self.said = time.monotonic()
            left = (self.said - began) / max(done - before, 1) * (total - done)
            sys.stderr.write(f"{what} {done:,}/{total:,}  {text}  eta {left:.0f} s\n")

    def finish(self) -> None:
        """End the innermost stretch."""
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
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.bar.start()


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
