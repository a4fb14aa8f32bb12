"""Where long work reports how far it is; the command line shows it, tests and programs may not care."""

from __future__ import annotations

from typing import Any, Protocol


class Progress(Protocol):
    """Told of stretches of work, one at a time."""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin a stretch of `total` steps, of which some may be done."""

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Report how far the work is, with figures worth showing."""

    def finish(self) -> None:
        """End the stretch."""


class Silent:
    """A progress that nobody sees."""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Show nothing."""

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Show nothing."""

    def finish(self) -> None:
        """Show nothing."""


SILENT = Silent()
