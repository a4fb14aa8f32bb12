"""Standard streams that never stop the work: what nobody can read is dropped, what cannot be encoded is escaped."""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bertkit.cli.interrupts import end

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
