"""Worker processes that compute a function, run by loky, which is part of joblib.

loky does not fork, which fails once libraries have started threads, and does not run the program's script again, as
`multiprocessing` would. Unlike `joblib.Parallel`, its executor reads items in the thread that requests results.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any

from bertkit.errors import ResourceError

KeyedMap = Callable[[Iterable[tuple[Any, Any]]], Iterator[tuple[Any, Any]]]
"""Function that maps pairs of a key and an item to pairs of the key and the item's result, in order."""

_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_MAX_QUEUED = 2  # items that are ready, so that no worker waits for the program

_function: Callable[[Any], Any]  # in a worker


@contextmanager
def worker_pool(function: Callable[[Any], Any], processes: int) -> Iterator[KeyedMap]:
    """Yield a map that computes a function in single-threaded processes, or in this process if one is enough.

    Raises:
        ResourceError: If a worker process was killed.
    """
    if processes < 2:
        yield lambda items: ((key, function(item)) for key, item in items)
        return
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.process_executor import BrokenProcessPool

    settings = (function, os.getpid())
    executor = ProcessPoolExecutor(processes, initializer=_start_worker, initargs=settings, env=_ENVIRONMENT)
    try:
        yield partial(_map, executor, processes + _MAX_QUEUED)
    except BrokenProcessPool:
        remedy = "the system may have killed it because memory ran out: use fewer --threads"
        raise ResourceError("a worker process has ended early", remedy) from None
    finally:
        executor.shutdown(kill_workers=True)


def _map(executor: Executor, max_waiting: int, items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    queue = deque[tuple[Any, Future[Any]]]()
    for key, item in items:
        if len(queue) == max_waiting:
            first_key, future = queue.popleft()
            yield first_key, future.result()
        queue.append((key, executor.submit(_compute, item)))
    yield from ((key, future.result()) for key, future in queue)


def _start_worker(function: Callable[[Any], Any], program: int) -> None:
    global _function
    # Ctrl-C also reaches the program, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # libraries must not print between the results of the command
    Thread(target=_end_with, args=(program,), daemon=True).start()
    _function = function


def _end_with(program: int) -> None:
    """End this process once the program has been killed."""
    from multiprocessing import parent_process

    # On Windows, `os.getppid` still returns the id of a parent that has ended, but loky passes a handle.
    parent = parent_process() if sys.platform == "win32" else None
    while parent.is_alive() if parent else os.getppid() == program:
        time.sleep(0.5)
    os._exit(1)


def _compute(item: Any) -> Any:
    return _function(item)
