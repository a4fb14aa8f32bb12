"""Worker processes that compute a function: they start without the program's modules, and end with it.

They are not forked, since libraries have threads by then, nor started by `multiprocessing`, which would run the
program's script again. Each reads pickled items from its standard input, and writes results to its standard output.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Self, TypeVar

from bertkit.errors import ResourceError

_Key = TypeVar("_Key")

_START = "from bertkit.hardware.workers import _serve; _serve()"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_WAITING = 2  # items that wait for a worker, so that none waits for the program


class WorkerPool:
    """Computes a function in processes of one thread each; a context manager. Without processes, it computes here.

    Args:
        function: of one argument; it, its items and its results can be pickled.
        processes: how many there may be; each starts with the first item that no other has time for.
    """

    def __init__(self, function: Callable[[Any], Any], processes: int) -> None:
        self.function, self.processes = function, processes

    def __enter__(self) -> Self:
        """Prepare threads, each of which waits for the answer of one worker."""
        self._threads = ThreadPoolExecutor(max(1, self.processes))
        self._workers = list[subprocess.Popen[bytes]]()
        self._idle = SimpleQueue[subprocess.Popen[bytes]]()
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers, whatever they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown()
        for worker in self._workers:
            # closes its pipes, of which one may be broken, and waits for it
            with suppress(OSError), worker:
                pass

    def map(self, items: Iterable[tuple[_Key, Any]]) -> Iterator[tuple[_Key, Any]]:
        """Yield keys with the results of their items, in order, with few items waiting at a time.

        Raises:
            ResourceError: a worker has ended before its time.
        """
        if self.processes < 2:
            yield from ((key, self.function(item)) for key, item in items)
            return
        waiting = deque[tuple[_Key, Future[Any]]]()
        for key, item in items:
            if len(waiting) == self.processes + _WAITING:
                before, future = waiting.popleft()
                yield before, future.result()
            if len(waiting) >= len(self._workers) < self.processes:
                self._start_worker()
            waiting.append((key, self._threads.submit(self._compute, item)))
        yield from ((key, future.result()) for key, future in waiting)

    def _start_worker(self) -> None:
        settings = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
        environment = {**os.environ, **dict.fromkeys(_THREADS, "1"), **settings}
        command = [sys.executable, "-c", _START]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._workers.append(worker)
        # by a thread: the function may be larger than the pipe, and the worker loads libraries before it reads it
        self._threads.submit(self._send_function, worker)

    def _send_function(self, worker: subprocess.Popen[bytes]) -> None:
        with suppress(OSError):  # its first item will say why
            _send(worker.stdin, self.function)
        self._idle.put(worker)

    def _compute(self, item: Any) -> Any:
        """Let an idle worker compute the result of an item."""
        worker = self._idle.get()
        try:
            _send(worker.stdin, item)
            result, error = pickle.load(worker.stdout)  # type: ignore[arg-type]
        except (OSError, EOFError, pickle.UnpicklingError):
            remedy = "the system may have ended it for want of memory: use fewer --threads"
            raise ResourceError(f"a worker process has ended with exit code {worker.wait()}", remedy) from None
        finally:
            self._idle.put(worker)
        if error is not None:
            raise error
        return result


def _send(stream: Any, content: Any) -> None:
    pickle.dump(content, stream, pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _serve() -> None:
    """Answer the items on standard input until it ends, as a worker."""
    # Ctrl-C goes to the program too, which then ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between answers
    items = SimpleQueue[Any]()
    Thread(target=_read_items, args=(items,), daemon=True).start()
    function = items.get()
    while True:
        result, fault = None, None
        try:
            result = function(items.get())
        except Exception as error:  # whatever the function raises, the program raises again
            fault = error
        _send(answers, (result, fault))


def _read_items(items: SimpleQueue[Any]) -> None:
    """Read the function and its items until the program is gone, and end this process with it, whatever it is at."""
    with suppress(Exception):  # what is cut off, or does not load here
        while True:
            items.put(pickle.load(sys.stdin.buffer))
    os._exit(1)
