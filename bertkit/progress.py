"""Progress of long work, and lines about it: the command line shows both, tests and programs may ignore them."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
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

    def record(self, entry: Mapping[str, Any]) -> None:
        """Take a line of the training's ``metrics.jsonl``: a step with its loss, or with an evaluation's scores."""

    def finish(self) -> None:
        """End the stage."""


class Silent:
    """Shows no progress."""

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Show nothing."""

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Show nothing."""

    def record(self, entry: Mapping[str, Any]) -> None:
        """Show nothing."""

    def finish(self) -> None:
        """Show nothing."""


SILENT = Silent()


class Bars:
    """Shows a bar of tqdm for each stage that takes longer than a second."""

    def __init__(self) -> None:
        self.open: list[Any] = []

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin a stage; stages may be nested."""
        with warnings.catch_warnings(action="ignore"):  # that a notebook lacks widgets
            from tqdm.auto import tqdm
        self.open.append(tqdm(desc=what, total=total or None, initial=done, delay=1, leave=False))

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Move the bar of the innermost stage, and write figures beside it."""
        bar = self.open[-1]
        if figures:
            bar.set_postfix(figures, refresh=False)
        bar.update(done - bar.n)

    def record(self, entry: Mapping[str, Any]) -> None:
        """Show nothing: figures have the last loss and score."""

    def finish(self) -> None:
        """End the innermost stage."""
        self.open.pop().close()


class Events:
    """Passes progress on, and calls a function with each line of the training's ``metrics.jsonl``."""

    def __init__(self, progress: Progress, listener: Callable[[dict[str, Any]], object]) -> None:
        self.progress, self.listener = progress, listener
        self.start, self.update, self.finish = progress.start, progress.update, progress.finish

    def record(self, entry: Mapping[str, Any]) -> None:
        """Call the function."""
        self.progress.record(entry)
        self.listener(dict(entry))


def pick_progress(given: Progress | None) -> Progress:
    """Return the progress that a program gives, or else bars in a notebook and silence elsewhere."""
    if given is not None:
        return given
    return Bars() if "ipykernel" in sys.modules and find_spec("tqdm") else SILENT


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
