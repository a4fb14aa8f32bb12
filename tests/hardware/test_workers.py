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
from bertkit.hardware.workers import worker_pool
from tests.kills import slow_unless

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import os, time
from bertkit.hardware.workers import worker_pool
def work(seconds):
    time.sleep(seconds)
    return os.getpid()
with worker_pool(work, 2) as compute:
    results = compute(enumerate([0.2, 0.2, 600, 600]))
    print(*{process for _, process in (next(results), next(results))}, flush=True)
    list(results)
"""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_the_items(processes):
    with worker_pool(abs, processes) as compute:
        assert list(compute(enumerate(range(-50, 0)))) == [*enumerate(range(50, 0, -1))]
        assert list(compute(iter([]))) == []
        assert list(compute([("key", -3)])) == [("key", 3)]


def test_no_more_items_are_read_than_workers_need():
    read = []
    with worker_pool(abs, 2) as compute:
        results = compute(read.append(number) or (number, number) for number in range(100))
        next(results)
        assert len(read) <= 6


def test_a_fault_of_the_function_is_raised_here():
    with worker_pool(int, 2) as compute, pytest.raises(ValueError, match="invalid literal"):
        list(compute(enumerate(["1", "two", "3"])))


def test_what_a_function_prints_is_no_result(capfd):
    with worker_pool(print, 2) as compute:
        assert list(compute(enumerate(["a", "b"]))) == [(0, None), (1, None)]
    out, err = capfd.readouterr()
    assert (out, sorted(err.split())) == ("", ["a", "b"])


class Unloadable:
    def __reduce__(self):
        return (int, ("no number",))

    def __call__(self, item):
        return item


@pytest.mark.parametrize("function", [os._exit, Unloadable()])
def test_a_worker_that_dies_is_an_error_of_one_line(function):
    with pytest.raises(ResourceError) as caught, worker_pool(function, 2) as compute:
        list(compute(enumerate([7, 7, 7])))
    assert str(caught.value).startswith("a worker process has ended early - the system may have killed it")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("signal_number", slow_unless([signal.SIGKILL], [signal.SIGKILL, signal.SIGINT]))
def test_workers_end_with_the_program(signal_number):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )
    workers = [int(number) for number in program.stdout.readline().split()]
    assert workers
    program.send_signal(signal_number)
    program.communicate()
    assert program.returncode == -signal_number
    limit = time.monotonic() + 20
    while any(map(is_alive, workers)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))
