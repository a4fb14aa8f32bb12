"""Signals become a flag that training looks at between two steps."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bertkit.errors import StoppedError

# Windows has neither SIGHUP nor SIGUSR1
_CAUGHT = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


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

    Handlers are restored afterwards. A signal that the process was started to ignore stays ignored: `nohup` asks for
    that, and so does a script that starts a job with `&`, lest Ctrl-C for a command in the foreground ends it.
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

    handlers = dict.fromkeys(_CAUGHT, request_stop)
    if hasattr(signal, "SIGUSR1"):
        handlers[signal.SIGUSR1] = request_save
    before = {number: handler for number in handlers if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, handlers[number])
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
