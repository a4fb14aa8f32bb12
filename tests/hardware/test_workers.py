"""Worker processes: results in order, errors of one line, and no process that outlives the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertkit.errors import ResourceError
from bertkit.hardware.workers import WorkerPool
from tests.kills import slow_unless

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import sys, time
from bertkit.hardware.workers import WorkerPool
with WorkerPool(time.sleep, 2) as pool:
    results = pool.map(enumerate([0, 0, 600, 600]))
    next(results)
    print(*(worker.pid for worker in pool._workers), flush=True)
    list(results)
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_come_in_the_order_of_the_items(processes):
    with WorkerPool(abs, processes) as pool:
        assert list(pool.map(enumerate(range(-50, 0)))) == [*enumerate(range(50, 0, -1))]
        assert list(pool.map(iter([]))) == []
        assert list(pool.map([("key", -3)])) == [("key", 3)]
        assert len(pool._workers) == (processes if processes > 1 else 0)


def test_no_more_items_are_read_than_workers_need():
    read = []
    with WorkerPool(abs, 2) as pool:
        results = pool.map(read.append(number) or (number, number) for number in range(100))
        next(results)
        assert len(read) <= 6


def test_a_fault_of_the_function_is_raised_here():
    with WorkerPool(int, 2) as pool, pytest.raises(ValueError, match="invalid literal"):
        list(pool.map(enumerate(["1", "two", "3"])))


def test_what_a_function_prints_is_no_answer(capfd):
    with WorkerPool(print, 2) as pool:
        assert list(pool.map(enumerate(["a", "b"]))) == [(0, None), (1, None)]


def test_a_worker_that_dies_is_an_error_of_one_line():
    with WorkerPool(os._exit, 2) as pool, pytest.raises(ResourceError) as caught:
        list(pool.map(enumerate([7, 7, 7])))
    assert "a worker process has ended with exit code 7 - the system may have ended it" in str(caught.value)


class Unloadable:
    def __reduce__(self):
        return (int, ("no number",))

    def __call__(self, item):
        return item


def test_a_function_that_does_not_load_is_an_error():
    with WorkerPool(Unloadable(), 2) as pool, pytest.raises(ResourceError, match="a worker process has ended"):
        list(pool.map(enumerate([1, 2, 3])))


def test_a_function_may_end_its_process():
    with pytest.raises(ResourceError, match="a worker process has ended"), WorkerPool(sys.exit, 2) as pool:
        list(pool.map(enumerate([3, 3])))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("signal_number", slow_unless([signal.SIGKILL], [signal.SIGKILL, signal.SIGINT]))
def test_workers_end_with_the_program(signal_number):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )
    workers = [int(number) for number in program.stdout.readline().split()]
    assert len(workers) == 2
    program.send_signal(signal_number)
    program.communicate()
    assert program.returncode == -signal_number
    limit = time.monotonic() + 20
    while any(map(is_alive, workers)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))
