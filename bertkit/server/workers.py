"""Several processes that serve at one address: one socket each, a dead one started again, and all ended together.

Each worker has a socket of its own at the address, among which the system deals out connections. The parent keeps all
of them open, so that connections wait where a worker has died, until the next one takes its socket.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from bertkit.errors import UsageError
from bertkit.hardware import threads
from bertkit.progress import log

METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus_client keeps numbers in files that all workers read."""
_SHARED_MEMORY = Path("/dev/shm")
_WAIT = 0.1  # seconds between two looks at the workers
# seconds before a worker is started again, so that one that always dies takes no core
_RESTART = 0.5


@dataclass
class _Workers:
    sockets: Sequence[socket.socket]
    numbers: dict[int, int] = field(default_factory=dict)
    """Process id -> the number of its socket."""
    life: tuple[int, int] = field(default_factory=os.pipe)
    """A pipe that nothing is written to: workers read its end when the parent, which alone holds the other, is gone."""
    is_stopping: bool = False

    def start(self, number: int) -> bool:
        """Fork a worker, and tell whether this is it."""
        signals = {signal.SIGINT, signal.SIGTERM}
        # none comes before the worker is in the table
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        pid = os.fork()
        if pid:
            self.numbers[pid] = number
        else:
            os.close(self.life[1])
            for position, listening in enumerate(self.sockets):
                if position != number:
                    listening.close()
            os.setpgid(0, 0)  # Ctrl-C reaches the parent, which passes it on once
            for name in signals:
                signal.signal(name, signal.SIG_DFL)
            threading.Thread(target=_end_with_parent, args=(self.life[0],), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return pid == 0

    def stop(self, number: int, _: FrameType | None = None) -> None:
        """Pass a signal on to all workers, whose sockets refuse connections once they close them."""
        self.is_stopping = True
        for listening in self.sockets:
            listening.close()
        for pid in self.numbers:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self) -> tuple[int, int]:
        """Wait until a worker has ended; return its number and its exit code, negative if a signal killed it."""
        while not (ended := os.waitpid(-1, os.WNOHANG))[0]:
            time.sleep(_WAIT)
        mark_dead: Any = importlib.import_module("prometheus_client.multiprocess").mark_process_dead
        mark_dead(ended[0])  # its queue counts no longer, and all that it has counted does
        return self.numbers.pop(ended[0]), os.waitstatus_to_exitcode(ended[1])


def _end_with_parent(life: int) -> None:
    os.read(life, 1)  # returns when nobody holds the other end any more
    os.kill(os.getpid(), signal.SIGTERM)


def check_workers(count: int) -> None:
    """Check that this system can have several workers.

    Raises:
        UsageError: it cannot, and several are asked for.
    """
    if count > 1 and not (hasattr(os, "fork") and hasattr(socket, "SO_REUSEPORT")):
        raise UsageError(f"--workers {count}: this system has no such workers", "leave it out, or use replicas")


def fork_workers(sockets: Sequence[socket.socket]) -> int | None:
    """Fork a worker per socket, and return its number in each of them; in the parent, return None when all have ended.

    Nothing may have been loaded that has threads. A worker that is killed is started again. One that ends by itself has
    said why, and the others would do so too: so all are ended.

    Raises:
        SystemExit: a worker ended with an exit code, which the parent then has too.
    """
    if threads.asked_threads() is None:
        threads.prepare(max(1, threads.fitting_threads().number // len(sockets)))
    # shared memory can be written also where all other file systems are read-only
    in_memory = os.access(_SHARED_MEMORY, os.W_OK)
    os.environ[METRICS] = tempfile.mkdtemp(prefix="bertkit-", dir=_SHARED_MEMORY if in_memory else None)
    workers, codes = _Workers(sockets), [0]
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, workers.stop)
    if (number := next(filter(workers.start, range(len(sockets))), None)) is not None:
        return number
    while workers.numbers:
        number, code = workers.wait()
        if code >= 0 or workers.is_stopping:
            codes.append(code)
            if not workers.is_stopping:
                workers.stop(signal.SIGTERM)
            continue
        log.warning(f"worker {number + 1} was killed by {signal.Signals(-code).name}; it is started again")
        time.sleep(_RESTART)
        if not workers.is_stopping and workers.start(number):
            return number
    shutil.rmtree(os.environ.pop(METRICS), ignore_errors=True)
    if any(code > 0 for code in codes):
        raise SystemExit(max(codes))
    return None
