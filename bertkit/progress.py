"""Progress bars and log lines. The command line shows them; programs that use the Python API can ignore them."""

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
"""Logger of bertkit; the command line writes its lines to standard error."""


class Progress(Protocol):
    """Receiver of the progress of stages, one at a time."""

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Start a stage of `total` steps, `done` of them already finished.

        A total of 0 means work of unknown length, so only its name is shown. Work of one step is usually short, so it
        is shown only in a terminal, which can erase the line.
        """

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Report the number of finished steps, with figures to show, such as the loss."""

    def record(self, entry: Mapping[str, Any]) -> None:
        """Receive a line of the training's ``metrics.jsonl``: the loss of a step, or the scores of an evaluation."""

    def finish(self) -> None:
        """End the stage."""


class Silent:
    """Progress that shows nothing."""

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Show nothing."""

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Show nothing."""

    def record(self, entry: Mapping[str, Any]) -> None:
        """Show nothing."""

    def finish(self) -> None:
        """Show nothing."""


SILENT = Silent()


class Bars(Silent):
    """Progress with a bar of tqdm for each stage that takes longer than a second."""

    def __init__(self) -> None:
        self.bars: list[Any] = []

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Start a stage; stages can be nested."""
        # In a notebook without widgets, tqdm warns on import.
        with warnings.catch_warnings(action="ignore"):
            from tqdm.auto import tqdm
        # `delay=1` shows no bar for work of less than a second, and `leave=False` removes a finished one.
        self.bars.append(tqdm(desc=name, total=total or None, initial=done, delay=1, leave=False))

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Move the bar of the innermost stage, and show figures next to it."""
        bar = self.bars[-1]
        if figures:
            bar.set_postfix(figures, refresh=False)
        bar.update(done - bar.n)

    def finish(self) -> None:
        """End the innermost stage."""
        self.bars.pop().close()


_BARS = Bars()
_in_use: ContextVar[Progress | None] = ContextVar("progress", default=None)


def get_progress() -> Progress:
    """Return the progress in use; if none is set, it is `Bars` in a notebook and `Silent` elsewhere."""
    return _in_use.get() or (_BARS if "ipykernel" in sys.modules and find_spec("tqdm") else SILENT)


@contextmanager
def use_progress(progress: Progress | None) -> Iterator[None]:
    """Use a progress inside the block, and in the functions that it calls; None changes nothing."""
    # A context variable, not a global, so that each thread of a server and each asyncio task has its own progress.
    token = _in_use.set(progress or _in_use.get())
    try:
        yield
    finally:
        _in_use.reset(token)


def with_progress(work: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of the Python API so that it uses its argument `progress`, also while it yields results."""

    @wraps(work)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        # A generator runs after this function has returned, when a plain `with use_progress(...)` would have ended.
        # So each of its steps runs in a copy of the context, which keeps the progress.
        context = copy_context()
        context.run(_in_use.set, cast("Progress | None", options.get("progress")) or _in_use.get())
        result: Any = context.run(work, *arguments, **options)
        return _iterate(context, result) if isinstance(result, Iterator) else result  # type: ignore[return-value]

    return run


def _iterate(context: Context, results: Iterator[Any]) -> Iterator[Any]:
    """Yield results that are computed in a separate context."""
    no_result = object()  # because any value, even None, can be a result
    while (result := context.run(next, results, no_result)) is not no_result:
        yield result


class ProgressWrapper:
    """Progress that passes all calls to the progress in use at its creation; subclasses override some of them."""

    def __init__(self) -> None:
        self.progress = get_progress()

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Start a stage."""
        self.progress.start(name, total, done)

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Report the number of finished steps."""
        self.progress.update(done, figures)

    def record(self, entry: Mapping[str, Any]) -> None:
        """Pass on a line of the training's ``metrics.jsonl``."""
        self.progress.record(entry)

    def finish(self) -> None:
        """End the stage."""
        self.progress.finish()


class MetricsListener(ProgressWrapper):
    """Progress that calls a function with each line of the training's ``metrics.jsonl``."""

    def __init__(self, listener: Callable[[dict[str, Any]], object]) -> None:
        super().__init__()
        self.listener = listener

    def record(self, entry: Mapping[str, Any]) -> None:
        """Call the function."""
        super().record(entry)
        self.listener(dict(entry))


@contextmanager
def stage(name: str, total: int = 0, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a stage inside the block; without a total, only its name is shown.

    Yields:
        Function to call with the number of steps since its last call.
    """
    progress = get_progress()
    progress.start(name, total, done)

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        progress.update(done, {})

    try:
        yield advance
    finally:
        progress.finish()
