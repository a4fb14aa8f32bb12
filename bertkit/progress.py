"""Progress of long work, and lines about it: the command line shows both, tests and programs may ignore them."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

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


class Bars(Silent):
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

    def finish(self) -> None:
        """End the innermost stage."""
        self.open.pop().close()


_BARS = Bars()
_in_use: ContextVar[Progress | None] = ContextVar("progress", default=None)


def get_progress() -> Progress:
    """Return the progress in use. Where none was set, that is bars in a notebook and silence elsewhere."""
    return _in_use.get() or (_BARS if "ipykernel" in sys.modules and find_spec("tqdm") else SILENT)


@contextmanager
def use_progress(progress: Progress | None) -> Iterator[None]:
    """Show the progress of all work inside the block, and of the functions that it calls; None changes nothing."""
    token = _in_use.set(progress or _in_use.get())
    try:
        yield
    finally:
        _in_use.reset(token)


def takes_progress(work: Callable[P, R]) -> Callable[P, R]:
    """Let a function of the Python API use its argument `progress` while it works, also as it yields results."""

    @wraps(work)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        context = copy_context()
        context.run(_in_use.set, cast("Progress | None", options.get("progress")) or _in_use.get())
        result: Any = context.run(work, *arguments, **options)
        return _iterate(context, result) if isinstance(result, Iterator) else result  # type: ignore[return-value]

    return run


def _iterate(context: Context, results: Iterator[Any]) -> Iterator[Any]:
    """Yield results that are computed in a context of their own."""
    end = object()
    while (result := context.run(next, results, end)) is not end:
        yield result


class ProgressWrapper:
    """Passes everything on to the progress that is in use when it is created; subclasses watch what they override."""

    def __init__(self) -> None:
        self.progress = get_progress()

    def start(self, what: str, total: int, done: int = 0) -> None:
        """Begin a stage."""
        self.progress.start(what, total, done)

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Report the number of steps done."""
        self.progress.update(done, figures)

    def record(self, entry: Mapping[str, Any]) -> None:
        """Take a line of the training's ``metrics.jsonl``."""
        self.progress.record(entry)

    def finish(self) -> None:
        """End the stage."""
        self.progress.finish()


class Events(ProgressWrapper):
    """Calls a function with each line of the training's ``metrics.jsonl``."""

    def __init__(self, listener: Callable[[dict[str, Any]], object]) -> None:
        super().__init__()
        self.listener = listener

    def record(self, entry: Mapping[str, Any]) -> None:
        """Call the function."""
        super().record(entry)
        self.listener(dict(entry))


@contextmanager
def stage(what: str, total: int = 0, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a stage for as long as it lasts, however it ends; without a total, only its name is shown.

    Yields:
        a function that is called with the number of steps that were done since its last call.
    """
    progress = get_progress()
    progress.start(what, total, done)

    def tick(steps: int) -> None:
        nonlocal done
        done += steps
        progress.update(done, {})

    try:
        yield tick
    finally:
        progress.finish()
