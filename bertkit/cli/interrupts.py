"""Handling of Ctrl-C during startup and shutdown. This module is imported first, so it imports nothing slow."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` imports enum: a quarter of the start
import os


def end_on_interrupt() -> None:
    """Make Ctrl-C print one line and end the process, unless the process was started to ignore it."""
    # A shell script starts its background jobs with SIGINT ignored; bertkit must not change this.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C while Python shuts down, because the work of the process is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end(*_: object) -> None:
    """Print one line and end the process at once."""
    try:
        # Python's streams may be locked or half imported when the signal arrives; a system call always works.
        os.write(2, b"error: stopped by Ctrl-C\n")
    finally:
        # Shells report 130 after Ctrl-C. `sys.exit` would run exit functions that wait for threads.
        os._exit(128 + signal.SIGINT)
