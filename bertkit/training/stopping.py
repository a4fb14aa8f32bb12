"""Early end of training: a time budget, or a signal.

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
_STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


class Budget:
    """Clock of a run with a time budget; `fraction` is read once per step, so that all parts of a step agree."""

    def __init__(self, seconds: float, training: PretrainingConfig) -> None:
        self.seconds, self.training = seconds, training
        self.earlier_seconds, self.start_time = 0.0, time.perf_counter()
        self.fraction = 0.0

    def start(self, earlier_seconds: float) -> None:
        """Start the clock, after `earlier_seconds` of earlier sessions."""
        self.earlier_seconds, self.start_time = earlier_seconds, time.perf_counter()
        self.read()

    @property
    def used_seconds(self) -> float:
        """Seconds used so far, earlier sessions included."""
        return self.earlier_seconds + time.perf_counter() - self.start_time

    @property
    def local_fraction(self) -> float:
        """Fraction of the time that is used by this process's clock."""
        return min(1.0, self.used_seconds / self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether the time was up when the clock was last read."""
        return self.fraction >= 1

    def read(self) -> None:
        """Read the clock; several processes agree on the clock that is ahead."""
        self.fraction = max_over_processes(self.local_fraction)

    def learning_rate_factor(self) -> float:
        """Return the factor of the learning rate in the recipe's schedule at this fraction of the time."""
        warmup = self.training.warmup_ratio
        schedule = self.training.schedule
        if schedule != "constant" and self.fraction < warmup:
            return max(self.fraction, 1e-3) / warmup
        decay = self.training.decay_fraction if schedule == "warmup_stable_decay" else 1 - warmup
        decayed = max(0.0, 1 - (1 - self.fraction) / decay)  # fraction of the decay that is over
        if schedule == "linear":
            return 1 - decayed
        return 1.0 if schedule.startswith("constant") else 0.5 * (1 + math.cos(math.pi * decayed))


def max_over_processes(value: float) -> float:
    """Return the largest of the values of all processes of a run."""
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    largest = torch.tensor(value)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX)
    return float(largest)


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
    """Catch Ctrl-C, SIGTERM and SIGHUP (the first requests a stop, the second ends the process), and SIGUSR1.

    Handlers are restored afterwards. A signal that the process has ignored since its start stays ignored, because
    `nohup` and jobs in the background (`&`) rely on that: Ctrl-C for the command in the foreground must not end them.
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

    handlers = dict.fromkeys(_STOP_SIGNALS, request_stop)
    if hasattr(signal, "SIGUSR1"):
        handlers[signal.SIGUSR1] = request_save
    originals = {signum: handler for signum in handlers if (handler := signal.getsignal(signum)) is not signal.SIG_IGN}
    try:
        for signum in originals:
            signal.signal(signum, handlers[signum])
        yield flag
    finally:
        for signum, handler in originals.items():
            signal.signal(signum, handler)
