"""Log lines, progress on stderr, and standard streams whose errors do not stop the program.

Output that cannot be written is dropped, and characters that cannot be encoded are escaped.
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
from bertkit.hardware.process import CpuContentionMonitor
from bertkit.progress import Silent
from bertkit.reports.text import duration_text
from bertkit.storage.runs import is_main_process

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.progress import Progress, Task

# With these characters, a text or file name could color the terminal, move its cursor or forge a log line: C0 without
# tab and line feed, DEL, C1, marks that reorder text or end a line, and halves of surrogate pairs.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print timestamps, library messages and tracebacks.")
]
LogFileOption = Annotated[
    str | None,
    typer.Option("--log-file", metavar="FILE", help="Append the log to a file."),
]
_TIMED_FORMAT = "%(asctime)s %(message)s"

_NO_READER_ERRORS = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET)
"""Error numbers of a pipe without a reader, a closed terminal, or a closed descriptor."""


class _Output(io.FileIO):
    """File descriptor that accepts all output, and drops it after the first error."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write the data, or drop it after an error."""
        try:
            # Another program can have made the terminal non-blocking; then `write` may return None.
            while (count := super().write(data)) is None:
                time.sleep(0.001)  # Windows has no `select` for files.
        except OSError as error:
            # A training of hours must not stop because its output cannot be written. The first error is kept for
            # the exit code, and later output goes to the null device.
            self.error = error
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())  # C code and child processes write to this descriptor, too.
            os.close(null)
            return memoryview(data).nbytes
        return count


def prepare() -> None:
    """Open closed standard streams, and make the others drop output that cannot be written.

    If a standard stream is closed, the next opened file gets its descriptor, and printed lines go into that file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # `os.open` returns the lowest free descriptor, which is the closed one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    # In an ASCII or Latin-1 locale, stdout escapes characters as JSON does, so that printed JSON stays valid.
    codecs.register_error("json", _escape_as_json)
    sys.stdout = _make_tolerant(sys.stdout, 1, "json")
    sys.stderr = _make_tolerant(sys.stderr, 2, "backslashreplace")


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C inside the block, so that temporary files are removed.

    If a library drops the exception, as Rust code does, the process ends at once.
    """
    # Python raises KeyboardInterrupt at the next bytecode. If that is in a callback from C or Rust, only
    # `sys.unraisablehook` receives the exception.
    handles_interrupts = signal.getsignal(signal.SIGINT) is end
    report = sys.unraisablehook
    try:
        if handles_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = lambda error: end() if error.exc_type is KeyboardInterrupt else report(error)
        yield
    finally:
        if handles_interrupts:
            signal.signal(signal.SIGINT, end)
            sys.unraisablehook = report


def is_read() -> bool:
    """Return whether stdout has had no error, so that a program can still be reading it."""
    return _get_error(sys.stdout) is None


def lost_output() -> OSError | None:
    """Flush stdout, and return its error, or None if all was written or the reader has closed the pipe."""
    sys.stdout.flush()
    error = _get_error(sys.stdout)
    return None if error is None or error.errno in _NO_READER_ERRORS else error


def _get_error(stream: object) -> OSError | None:
    # Tests and other programs can replace stdout by a stream without a buffer.
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, _Output) else None


def _make_tolerant(stream: Any, descriptor: int, errors: str) -> Any:
    """Return a stream for a descriptor that accepts all output; keep streams of tests and other programs."""
    if stream is not None and stream is not (sys.__stdout__ if descriptor == 1 else sys.__stderr__):
        return stream
    if stream is not None:
        stream.flush()
        # The console of Windows is not a file, and its descriptor takes bytes in another encoding.
        if not isinstance(getattr(stream.buffer, "raw", stream.buffer), io.FileIO):
            stream.reconfigure(errors=errors)
            return stream
    # As in Python, stderr and terminals are line-buffered; files and pipes are block-buffered.
    is_line_buffered = descriptor == 2 or os.isatty(descriptor)
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(descriptor, "w", closefd=False)),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=errors,
        line_buffering=is_line_buffered,
        write_through=getattr(stream, "write_through", False),
    )


def _escape_as_json(error: UnicodeError) -> tuple[str, int]:
    r"""Return characters that an encoding lacks as JSON escapes, and the position after them.

    >>> codecs.register_error("json", _escape_as_json)
    >>> "café".encode("ascii", errors="json")
    b'caf\\u00e9'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def printable(text: str) -> str:
    r"""Return a text with escapes for control characters and for halves of surrogate pairs.

    >>> printable("a\tb\x1b[31m\x9b1mé")
    'a\tb\\x1b[31m\\x9b1mé'
    """
    return CONTROL_CHARACTERS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class _PrintableLines(logging.Formatter):
    """Formatter that escapes control characters, which a file name can contain."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message of a record."""
        return printable(super().format(record))


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that writes to the current `sys.stderr`, which rich replaces while it shows a progress bar."""

    @property
    def stream(self) -> TextIO:
        """Return the stream of stderr."""
        return sys.stderr

    @stream.setter
    def stream(self, _: object) -> None:
        """Ignore the stream that logging sets."""


def log_to_stderr() -> None:
    """Send the log of bertkit to stderr; in a distributed launch, only the first process logs."""
    logger = logging.getLogger("bertkit")
    for handler in logger.handlers:  # files of an earlier command in this process
        handler.close()
    logger.handlers = [_add_format(_StderrHandler(), "%(message)s")]
    logger.setLevel(logging.INFO if is_main_process() else logging.ERROR)
    logger.propagate = False


def configure_log(quiet: bool, verbose: bool, log_file: str | None) -> None:
    """Configure logging with its options, which are allowed before and after the command.

    Raises:
        UsageError: If --quiet and --verbose are both given.
        ResourceError: If the file cannot be written.
    """
    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other", "leave one of them out")
    logger = logging.getLogger("bertkit")
    # `log_to_stderr` adds the handler of stderr first; handlers of --log-file follow.
    stderr_handlers = logger.handlers[:1]
    if verbose:
        logger.setLevel(logging.DEBUG)
        for handler in stderr_handlers:
            _add_format(handler, _TIMED_FORMAT)
    if log_file is not None and is_main_process():
        try:
            logger.addHandler(_add_format(logging.FileHandler(log_file, encoding="utf-8"), _TIMED_FORMAT))
        except OSError as error:
            raise ResourceError(f"--log-file: {error.strerror}", "name another file", file=log_file) from None
    if quiet:
        for handler in stderr_handlers:
            handler.setLevel(logging.ERROR)


def is_quiet() -> bool:
    """Return whether only results and errors are printed."""
    return any(handler.level >= logging.ERROR for handler in logging.getLogger("bertkit").handlers[:1])


def is_verbose() -> bool:
    """Return whether --verbose adds times and tracebacks; False for the JSON log of a server."""
    formats = [getattr(handler.formatter, "_fmt", None) for handler in logging.getLogger("bertkit").handlers[:1]]
    return formats == [_TIMED_FORMAT]


def _add_format(handler: logging.Handler, layout: str) -> logging.Handler:
    handler.setFormatter(_PrintableLines(layout))
    return handler


# Whether the current command has --json. A global is enough, because a process runs one command at a time.
_as_json = False


@contextmanager
def json_output(enabled: bool = True) -> Iterator[None]:
    """Print results as JSON objects inside the block, as --json does."""
    global _as_json
    outer, _as_json = _as_json, enabled
    try:
        yield
    finally:
        _as_json = outer


def is_json_wanted() -> bool:
    """Return whether results are printed as JSON objects."""
    return _as_json


# --- Progress: a live bar in a terminal, a line every ten seconds elsewhere ---


_INTERVAL = 10.0  # seconds between lines if stderr is not a terminal
# Minimum width of a terminal -> width of the bar. Narrower terminals have space only for the numbers.
_BAR_WIDTHS = {100: 12, 60: 6}


class TerminalProgress(Silent):
    """Progress bars and lines on stderr; only the first process of a distributed launch shows them."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int, float]] = []
        """Open stages, outermost first: name, total steps, steps done before the start, start time."""
        self.bar: Any = None
        self.last_line = 0.0
        self.cores = CpuContentionMonitor()

    @cached_property  # The options of the command line are known when the first stage starts.
    def is_shown(self) -> bool:
        """Whether this process shows progress."""
        return is_main_process() and not is_quiet()

    @cached_property
    def has_bars(self) -> bool:
        """Whether progress is a moving bar. CI may provide a terminal, but its log keeps every frame."""
        is_interactive = os.environ.get("TERM") != "dumb" and os.environ.get("CI", "").lower() in ("", "0", "false")
        return self.is_shown and sys.stderr.isatty() and is_interactive

    def start(self, name: str, total: int, done: int = 0) -> None:
        """Start a stage of `total` steps, `done` of them already finished; stages can be nested."""
        name = printable(name)  # It can contain a file name.
        self.stages.append((name, total, done, time.monotonic()))
        self.last_line = time.monotonic()
        if self.has_bars:
            self.bar = self.bar or _open_bar()
            steps = total if total > 1 else None
            count = _step_text(done, total)
            self.bar.add_task(name, total=steps, completed=done, count=count, figures=_Figures())
        elif self.is_shown and not total:
            sys.stderr.write(f"{name} ...\n")

    def update(self, done: int, figures: dict[str, Any]) -> None:
        """Show the number of finished steps of the innermost stage, with some figures."""
        # Other processes that compete for the CPU slow a run down unnoticed, so each update checks for them.
        self.cores.check()
        name, total, earlier_steps, start = self.stages[-1]
        count = _step_text(done, total)
        texts = [f"{figure} {_format_figure(value)}" for figure, value in figures.items()]
        if self.has_bars:
            task = self.bar.task_ids[-1]
            self.bar.update(task, completed=done, count=count, figures=_Figures(texts))
        elif self.is_shown and time.monotonic() - self.last_line >= _INTERVAL:
            self.last_line = time.monotonic()
            # The estimate is from the steps of this process; a resumed run starts with finished steps.
            remaining = (self.last_line - start) / max(done - earlier_steps, 1) * (total - done)
            sys.stderr.write("  ".join([f"{name}: {count}", *texts, f"eta {duration_text(remaining)}"]) + "\n")

    def finish(self) -> None:
        """End the innermost stage."""
        self.cores.check()
        if self.stages:
            self.stages.pop()
            if self.has_bars:
                self.bar.remove_task(self.bar.task_ids[-1])
        if self.bar is not None and not self.stages:
            self.bar.stop()
            self.bar = None


class _Figures:
    """Figures in one line; those that do not fit next to the other columns are dropped from the end."""

    def __init__(self, figures: Sequence[str] = ()) -> None:
        self.figures = figures

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(0, len("  ".join(self.figures)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Callers put the most important figure first.
        figures = list(self.figures)
        while figures and len("  ".join(figures)) > options.max_width:
            figures.pop()
        yield "  ".join(figures)


def _open_bar() -> Progress:
    """Open the bar, which shows name, count and remaining time, and figures in the rest of the line."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class RemainingColumn(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            return Text("") if task.total is None else Text.assemble("eta ", super().render(task))

    class FiguresColumn(ProgressColumn):
        def render(self, task: Task) -> Any:
            return task.fields["figures"]

    def make_column() -> Column:
        return Column(no_wrap=True)

    console = Console(stderr=True)
    # The first width that fits is used: 12 from 100 columns, 6 from 60, and no bar below.
    widths = [width for columns, width in _BAR_WIDTHS.items() if console.width >= columns]
    bar = Progress(
        TextColumn("{task.description}", markup=False, table_column=make_column()),
        *(BarColumn(width, table_column=make_column()) for width in widths[:1]),
        TextColumn("{task.fields[count]}", table_column=make_column()),
        RemainingColumn(compact=True, table_column=make_column()),
        FiguresColumn(),
        console=console,
        # A finished bar disappears, so that only results and log lines stay in the terminal.
        transient=True,
    )
    bar.start()
    return bar


def _step_text(done: int, total: int) -> str:
    return f"{done:,}/{total:,}" if total > 1 else ""


def _format_figure(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
