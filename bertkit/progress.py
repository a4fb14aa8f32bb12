"""Progress of long work, and lines about it: the command line shows both, tests and programs may ignore them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

log = logging.getLogger("bertkit")
"""Takes a line about what is done or was found; on the command line, it goes to standard error."""


class Progress(Protocol):
    """Receives the progress of one stage of work at a time."""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin a stage of `total` steps, of which `done` are done already.

        A total of 0 stands for work of unknown length, which is announced. Work of one step is mostly short, and shown
        only where the line can be taken back.
        """

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Report the number of steps done, with figures to show beside it, such as the loss."""

    def finish(self) -> None:
        """End the stage."""


class Silent:
    """Shows no progress."""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Show nothing."""

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Show nothing."""

    def finish(self) -> None:
        """Show nothing."""


SILENT = Silent()


@contextmanager
def stage(progress: Progress, what: str, total: int = 0, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a stage for as long as it lasts, however it ends; without a total, only its name is shown.

    Yields:
        a function that is called with the number of steps that were done since its last call.
    """
    progress.start(what, total, done)

    def tick(steps: int) -> None:
        nonlocal done
        done += steps
        progress.update(done, {})

    try:
        yield tick
    finally:
        progress.finish()
