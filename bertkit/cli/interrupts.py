"""Ctrl-C while a command starts and ends. It is imported first, so it imports nothing that takes time."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` imports enum: a quarter of the start
import os


def end_on_interrupt() -> None:
    """Set Ctrl-C to end the process with one line, unless the process was started to ignore it."""
    # A shell script starts its background jobs with SIGINT ignored, and that must stay so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on, because it would kill a process whose work is done while Python shuts down."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end(*_: object) -> None:
    """End the process at once."""
    try:
        # Python's own streams may be locked or half imported when the signal arrives. A system call works at
        # any time.
        os.write(2, b"error: stopped by Ctrl-C\n")
    finally:
        # 130, as shells report a process that Ctrl-C ended. `sys.exit` would run exit functions that wait for
        # threads.
        os._exit(128 + signal.SIGINT)
