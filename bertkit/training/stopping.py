"""Early end of a training: a budget of time, or a signal.

With a budget, the learning rate follows the clock (Geiping & Goldstein 2023, section 4.4). Signals set a flag that
training reads between two steps.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bertkit.errors import StoppedError
from bertkit.recipe.sections import PretrainingConfig

# Windows has neither SIGHUP nor SIGUSR1, and only Windows has SIGBREAK (Ctrl-Break).
_CAUGHT = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


class Budget:
    """Clock of a run with a limited time, read once per step, so that all parts of a step agree."""

    def __init__(self, seconds: float, training: PretrainingConfig) -> None:
        self.seconds, self.training = seconds, training
        self.used_before, self.start_time = 0.0, time.perf_counter()
        self.share = 0.0

    def start(self, used: float) -> None:
        """Start the clock; `used` seconds have passed in earlier sessions."""
        self.used_before, self.start_time = used, time.perf_counter()
        self.read()

    @property
    def used(self) -> float:
        """Seconds used so far, earlier sessions included."""
        return self.used_before + time.perf_counter() - self.start_time

    @property
    def passed(self) -> float:
        """Fraction of the time that has passed by this process's clock."""
        return min(1.0, self.used / self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether the time was up when the clock was last read."""
        return self.share >= 1

    def read(self) -> None:
        """Read the clock; several processes agree on the latest one."""
        self.share = latest(self.passed)

    def rate(self) -> float:
        """Return the factor of the learning rate in the recipe's schedule at this fraction of the time."""
        warm = self.training.warmup_ratio
        schedule = self.training.schedule
        if schedule != "constant" and self.share < warm:
            return max(self.share, 1e-3) / warm
        decay = self.training.decay_fraction if schedule == "warmup_stable_decay" else 1 - warm
        past = max(0.0, 1 - (1 - self.share) / decay)  # fraction of the decay that is over
        if schedule == "linear":
            return 1 - past
        return 1.0 if schedule.startswith("constant") else 0.5 * (1 + math.cos(math.pi * past))


def latest(time: float) -> float:
    """Return the largest of the times that the processes of a run have measured."""
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return time
    times = torch.tensor(time)
    distributed.all_reduce(times, distributed.ReduceOp.MAX)
    return float(times)


def make_budget(training: PretrainingConfig) -> Budget | None:
    """Build the budget of a recipe, or return None if the recipe counts steps."""
    return None if training.budget_seconds is None else Budget(training.budget_seconds, training)


class StopFlag:
    """Flag that signals set: the signal that stops the run, if any, or a request for a checkpoint (SIGUSR1)."""

    def __init__(self) -> None:
        self.signal = 0
        self.save = False

    def error(self) -> StoppedError:
        """Build the error that ends a run; a checkpoint was saved, so the run can be resumed."""
        name = {signal.SIGINT: "Ctrl-C"}.get(signal.Signals(self.signal), signal.Signals(self.signal).name)
        return StoppedError(f"stopped by {name}; all is saved", "the same command resumes", signal=self.signal)


@contextmanager
def handle_signals() -> Iterator[StopFlag]:
    """Catch Ctrl-C, SIGTERM and SIGHUP (one requests a stop, a second ends the process), and SIGUSR1.

    Handlers are restored afterwards. A signal that the process ignores since its start stays ignored: `nohup` and
    scripts that start a job with `&` rely on it, so that Ctrl-C for a command in the foreground does not end the job.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def request_stop(signum: int, _: FrameType | None) -> None:
        if flag.signal:
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
        flag.signal = signum

    def request_save(signum: int, _: FrameType | None) -> None:
        flag.save = True

    handlers = dict.fromkeys(_CAUGHT, request_stop)
    if hasattr(signal, "SIGUSR1"):
        handlers[signal.SIGUSR1] = request_save
    before = {signum: handler for signum in handlers if (handler := signal.getsignal(signum)) is not signal.SIG_IGN}
    try:
        for signum in before:
            signal.signal(signum, handlers[signum])
        yield flag
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
