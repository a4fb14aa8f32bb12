"""Where the lines about the work go: to stderr, and to a file that the user names."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, TextIO

import typer

from bertkit.cli.output import printable
from bertkit.errors import ResourceError, UsageError
from bertkit.storage.runs import is_main_process

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors alone.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print times, what libraries say, and the traceback of an error.")
]
LogFileOption = Annotated[
    str | None,
    typer.Option("--log-file", metavar="FILE", help="Append the lines about the work to a file."),
]
_TIMED = "%(asctime)s %(message)s"


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


def write_to_stderr() -> None:
    """Send the log of bertkit to stderr; of a distributed launch, the first process alone does."""
    logger = logging.getLogger("bertkit")
    for handler in logger.handlers:  # a file's, where another command has run in this process
        handler.close()
    logger.handlers = [_add_format(_StderrHandler(), "%(message)s")]
    logger.setLevel(logging.INFO if is_main_process() else logging.ERROR)
    logger.propagate = False


def configure(quiet: bool, verbose: bool, log_file: str | None) -> None:
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
