"""Signals become a flag that training looks at between two steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bertkit.errors import StoppedError

_CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopFlag:
    """Which signal asked the run to stop, if any; SIGUSR1 only asks for a checkpoint."""

    def __init__(self) -> None:
        self.signal = 0
        self.save = False

    def error(self) -> StoppedError:
        """Return the error that ends a run which was saved and can be resumed."""
        name = {signal.SIGINT: "Ctrl-C"}.get(signal.Signals(self.signal), signal.Signals(self.signal).name)
        return StoppedError(f"stopped by {name}; all is saved", "the same command resumes", signal=self.signal)


@contextmanager
def caught_signals() -> Iterator[StopFlag]:
    """Catch Ctrl-C, SIGTERM and SIGHUP (one requests a stop, a second ends the process), and SIGUSR1.

    Handlers are restored afterwards. They are set even where a shell started the process with signals ignored.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def request_stop(number: int, _: FrameType | None) -> None:
        if flag.signal:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        flag.signal = number

    def request_save(number: int, _: FrameType | None) -> None:
        flag.save = True

    before = {number: signal.signal(number, request_stop) for number in _CAUGHT}
    before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, request_save)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
