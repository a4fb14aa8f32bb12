"""Ctrl-C while a command starts and ends. It is imported first, so it imports nothing that takes time."""

import _signal as signal  # type: ignore[import-not-found]  # `signal` imports enum: a quarter of the start
import os


def end_on_interrupt() -> None:
    """Set Ctrl-C to end the process with one line, unless the process was started to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from now on, because it would kill a process whose work is done while Python shuts down."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end(*_: object) -> None:
    """End the process at once."""
    try:
        os.write(2, b"error: stopped by Ctrl-C\n")
    finally:
        os._exit(128 + signal.SIGINT)
