"""The terminal: standard streams that never stop the work, the lines of the log, and progress on stderr.

What nobody can read is dropped, and what cannot be encoded is escaped.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from bertkit.cli.interrupts import end
from bertkit.errors import ResourceError, UsageError
from bertkit.hardware.process import CoreWatch
from bertkit.progress import Silent
from bertkit.reports.text import duration_text
from bertkit.storage.runs import is_main_process

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.progress import Progress, Task

# C0 without tab and line feed, DEL, C1, marks that reorder text or end a line, halves of surrogate pairs
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors alone.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print times, what libraries say, and the traceback of an error.")
]
LogFileOption = Annotated[
    str | None,
    typer.Option("--log-file", metavar="FILE", help="Append the lines about the work to a file."),
]
_TIMED = "%(asctime)s %(message)s"

_NOBODY_READS = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET)
"""A pipe without a reader, a terminal that is gone, a descriptor that was closed."""


class _Output(io.FileIO):
    """A descriptor that takes everything; from its first error on, it leads nowhere."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write, or drop what cannot be written."""
        try:
            # another program made the terminal non-blocking
            while (count := super().write(data)) is None:
                _wait_for(self.fileno())
        except OSError as error:
            # The work goes on: nobody reading its output is no reason to lose a training of hours.
            self.error = error
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # for C code and child processes, too
            os.close(null)
            return memoryview(data).nbytes
        return count


def prepare() -> None:
    """Open the standard streams that are closed, and make the others drop what cannot be written.

    A descriptor that is closed would go to the next file that is opened, and what is printed would go into that file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # this one: it is the lowest that is free
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    codecs.register_error("json", _escape_as_json)
    sys.stdout = _tolerant(sys.stdout, 1, "json")
    sys.stderr = _tolerant(sys.stderr, 2, "backslashreplace")


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt meanwhile, so that what was begun is cleaned up.

    Where that is raised inside a library that cannot pass it on, as in Rust, the process ends at once.
    """
    ends, report = signal.getsignal(signal.SIGINT) is end, sys.unraisablehook
    try:
        if ends:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = lambda lost: end() if lost.exc_type is KeyboardInterrupt else report(lost)
        yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, end)
            sys.unraisablehook = report


def is_read() -> bool:
    """Tell whether somebody may still read what is printed on stdout."""
    return _error_of(sys.stdout) is None


def lost_output() -> OSError | None:
    """Write out what is printed on stdout, and return why some of it is lost though somebody wanted it."""
    sys.stdout.flush()
    error = _error_of(sys.stdout)
    return None if error is None or error.errno in _NOBODY_READS else error


def _error_of(stream: object) -> OSError | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, _Output) else None


def _tolerant(stream: Any, descriptor: int, errors: str) -> Any:
    """Return a stream that takes everything in place of one of Python's own; others, such as those of tests, stay."""
    if stream is not None and stream is not (sys.__stdout__ if descriptor == 1 else sys.__stderr__):
        return stream
    if stream is not None:
        stream.flush()
    # Line by line where somebody watches; in blocks for files and pipes, as Python does itself.
    is_line_buffered = descriptor == 2 or os.isatty(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(descriptor, "w", closefd=False)),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=errors,
        line_buffering=is_line_buffered,
        write_through=getattr(stream, "write_through", False),
    )


def _escape_as_json(error: UnicodeError) -> tuple[str, int]:
    r"""Write characters that an encoding lacks as JSON does.

    >>> codecs.register_error("json", _escape_as_json)
    >>> "café".encode("ascii", errors="json")
    b'caf\\u00e9'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _wait_for(descriptor: int) -> None:
    import select

    select.select([], [descriptor], [])


def printable(text: str) -> str:
    r"""Return text with an escape for each character that a terminal would obey, or that cannot be written.

    >>> printable("a\tb\x1b[31m\x9b1mé")
    'a\tb\\x1b[31m\\x9b1mé'
    """
    return CONTROL_CHARACTERS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class _PrintableLines(logging.Formatter):
    """Shows what a terminal would obey, such as an escape sequence in a file's name, instead of sending it there."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message of a record."""
        return printable(super().format(record))


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what stderr is at the moment: while a progress bar is shown, that prints above the bar."""

    @property
    def stream(self) -> TextIO:
        """Return the stream of stderr."""
        return sys.stderr

    @stream.setter
    def stream(self, _: object) -> None:
        """Ignore the stream of the time at which logging began."""


def log_to_stderr() -> None:
    """Send the log of bertkit to stderr; of a distributed launch, the first process alone does."""
    logger = logging.getLogger("bertkit")
    for handler in logger.handlers:  # a file's, where another command has run in this process
        handler.close()
    logger.handlers = [_add_format(_StderrHandler(), "%(message)s")]
    logger.setLevel(logging.INFO if is_main_process() else logging.ERROR)
    logger.propagate = False


def configure_log(quiet: bool, verbose: bool, log_file: str | None) -> None:
    """Follow the options about logging, which may stand before the command and after it.

    Raises:
        UsageError: two of them exclude each other.
        ResourceError: the file cannot be written.
    """
    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other", "leave one of them out")
    logger = logging.getLogger("bertkit")
    stderr = logger.handlers[:1]
    if verbose:
        logger.setLevel(logging.DEBUG)
        for handler in stderr:
            _add_format(handler, _TIMED)
    if log_file is not None and is_main_process():
        try:
            logger.addHandler(_add_format(logging.FileHandler(log_file, encoding="utf-8"), _TIMED))
        except OSError as error:
            raise ResourceError(f"--log-file: {error.strerror}", "name another file", file=log_file) from None
    if quiet:
        for handler in stderr:
            handler.setLevel(logging.ERROR)


def is_quiet() -> bool:
    """Tell whether only results and errors are to be printed."""
    return any(handler.level >= logging.ERROR for handler in logging.getLogger("bertkit").handlers[:1])


def is_verbose() -> bool:
    """Tell whether lines have times, and errors their tracebacks; never in the log of a server, which is JSON."""
    formats = [getattr(handler.formatter, "_fmt", None) for handler in logging.getLogger("bertkit").handlers[:1]]
    return formats == [_TIMED]


def _add_format(handler: logging.Handler, layout: str) -> logging.Handler:
    handler.setFormatter(_PrintableLines(layout))
    return handler


_as_json = False  # whether the command that runs was called with --json


@contextmanager
def json_output(wanted: bool = True) -> Iterator[None]:
    """Print results as JSON objects inside the block, as --json asks for."""
    global _as_json
    before, _as_json = _as_json, wanted
    try:
        yield
    finally:
        _as_json = before


def is_json_wanted() -> bool:
    """Return whether results are printed as JSON objects."""
    return _as_json


# --- Progress: a live bar in a terminal, a line every ten seconds elsewhere ---


_INTERVAL = 10.0  # seconds between lines if stderr is not a terminal
# Columns of a terminal, at least -> width of the bar. In narrower terminals, the numbers need the room.
_BAR_WIDTHS = {100: 12, 60: 6}


class TerminalProgress(Silent):
    """Progress bars and lines on stderr; only the first process of a distributed launch shows them."""

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
        """Begin a stage of `total` steps after `done` of them; stages may be nested."""
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
    """Open the bar, whose name, count and time left are always shown; the figures get the rest of the line."""
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
