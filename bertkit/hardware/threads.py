"""Threads: how many fit this process, which number of them is fastest, and who else takes their cores.

The threads of OpenMP wait for one another hundreds of times in a step. Where another process has the core of one of
them, all wait until the system gives it back: fewer threads are faster then, and so are threads that do not spin.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from bertkit.hardware.device import find_device
from bertkit.progress import log

# turns that libgomp's threads wait before they sleep; its own 300,000 take milliseconds
_SPINS = "1000"
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_BATCH_WORKERS = 4  # on a GPU: so many keep up with the largest batches that were tried
_POOLS = ("OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")  # of numpy, and of tokenizers
# of a trial: what it may take, what a step should, and how often
_SECONDS, _STEP_SECONDS, _ROUNDS = 1.6, 0.2, 5
# times the seconds of fewer threads: what more stay below; of more: what ends a trial
_WORTH, _SLOWER = 0.9, 1.5
_WINDOW, _SHARE, _GROWTH, _STEPS = 10.0, 0.25, 2.0, 20  # of the watches below

T = TypeVar("T")
R = TypeVar("R")


class Threads(NamedTuple):
    """A number of threads, and why it is that one; the reason may be empty."""

    number: int
    why: str

    @property
    def text(self) -> str:
        """The number with its noun."""
        return f"{self.number} thread{'' if self.number == 1 else 's'}"


@dataclass
class _Process:
    """What is known of the threads of this process."""

    option: Threads | None = None
    """The number that its command line asks for, or the work that it does now."""
    own: int = 0
    """The number that torch had before it was changed here: its own, or that of a program that uses this package."""
    most: int = 0
    """The number before a trial chose fewer."""
    count: int = 0
    """The number that torch was given here."""
    is_open: bool = False
    """Whether a trial may still choose a smaller one."""
    listener: Callable[[Threads], None] | None = None


_PROCESS = _Process()


def prepare(option: int | None) -> None:
    """Note the number of threads that a command line asks for, and let those of libraries that load later fit.

    Threads that wait for others sleep soon, unless the environment says how they wait.
    """
    _PROCESS.option = Threads(option, "--threads") if option else None
    if not any(name in os.environ for name in _WAITING):
        os.environ[_WAITING[0]] = _SPINS
    for name in _POOLS:
        os.environ.setdefault(name, str(fitting_threads().number))


@contextmanager
def one_thread(why: str) -> Iterator[None]:
    """Compute with one thread, unless the user asks for a number: for work that is shorter than a trial."""
    before = _PROCESS.option
    _PROCESS.option = asked_threads() or Threads(1, why)
    try:
        yield
    finally:
        _PROCESS.option = before


def asked_threads() -> Threads | None:
    """Return the number of threads that is asked for, by the command line, by OpenMP's variable or by `one_thread`."""
    if _PROCESS.option:
        return _PROCESS.option
    # of nested teams, that of the outer one
    named = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return Threads(int(named), "OMP_NUM_THREADS") if named.isdecimal() and int(named) else None


def fitting_threads() -> Threads:
    """Return how many threads this process may use: as many as it is asked for, or one for each core that it has."""
    return asked_threads() or _free_threads()


@cache
def _free_threads() -> Threads:
    """Return how many threads the machine leaves this process; read once, since every exported forward pass asks.

    Two logical processors of one core count as one, since they share what computes. Of a quota, whole CPUs count:
    with one thread more, all are stopped when it is used up.
    """
    every = range(os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else every
    cores, quota = len({*map(_core_of, allowed)}), read_quota()
    if quota < cores:
        return Threads(max(1, int(quota)), f"a quota of {quota:.3g} CPU{'' if quota == 1 else 's'}")
    total = len({*map(_core_of, every)})
    return Threads(cores, f"{cores} of {total} cores may be used" if cores < total else "")


def batch_workers(asked: int | None) -> int:
    """Return how many processes build batches: as many as asked for, or enough that a GPU need not wait for them.

    A CPU that trains has no core to spare.
    """
    if asked is not None:
        return asked
    return min(_BATCH_WORKERS, _free_threads().number - 1) if find_device().pins_memory else 0


def read_quota(process: Path = Path("/proc/self")) -> float:
    """Return how many CPUs the control groups of a process allow; without one, infinity."""
    return min(map(_quota_of, control_groups("cpu", process)), default=math.inf)


def control_groups(controller: str, process: Path = Path("/proc/self")) -> list[Path]:
    """Return the folders of the control groups that limit a process, its own and those around it.

    Both versions of control groups are read. In a container, the group's path may be one that is not mounted there:
    then the mounted one is its own.
    """
    try:
        groups, mounts = ((process / name).read_text(encoding="utf-8").split("\n") for name in ("cgroup", "mountinfo"))
    except OSError:
        return []
    paths = dict[str, PurePosixPath]()
    for line in filter(None, groups):  # 4:cpu,cpuacct:/path, or 0::/path in version 2
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = PurePosixPath(path)
    folders = list[Path]()
    for line in mounts:  # 33 32 0:30 /root /point options - cgroup source cpu,cpuacct
        fields, _, system = line.partition(" - ")
        kind, _, options = system.partition(" ")
        group = paths.get(kind)
        if group is None or (kind == "cgroup" and controller not in options.rpartition(" ")[2].split(",")):
            continue
        root, point = fields.split()[3:5]
        folder = Path(point, group.relative_to(root) if group.is_relative_to(root) else "")
        folders += [folder, *(parent for parent in folder.parents if parent.is_relative_to(point))]
    return folders


def _quota_of(group: Path) -> float:
    """Return how many CPUs a single control group allows."""
    try:
        if (file := group / "cpu.max").is_file():
            share, period = file.read_text(encoding="utf-8").split()
        else:
            share, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
        return int(share) / int(period) if int(share) > 0 else math.inf
    except (OSError, ValueError):  # no file, or "max"
        return math.inf


def _core_of(processor: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(processor)


# --- torch's threads ---


def use_threads(before: int | None = None, why: str = "") -> Threads:
    """Let torch use as many threads as `before`, or as many as fit.

    A trial may choose fewer of those that fit, where nobody asks for a number. They are never more than the program has
    set that uses this package.
    """
    import torch

    if torch.get_num_threads() != _PROCESS.count:
        _PROCESS.own = torch.get_num_threads()
    if before is not None:
        threads = Threads(before, why)
    elif (threads := fitting_threads()).why != "--threads":
        threads = Threads(min(threads.number, _PROCESS.own), threads.why)
    is_free = before is None and asked_threads() is None and "WORLD_SIZE" not in os.environ
    _PROCESS.is_open, _PROCESS.most = is_free and threads.number > 1, threads.number
    _set_threads(threads.number)
    return threads


def is_open() -> bool:
    """Tell whether a trial may still choose the number of threads."""
    return _PROCESS.is_open


@contextmanager
def tell_choice(listener: Callable[[Threads], None]) -> Iterator[None]:
    """Call a function with the number of threads that a trial chooses meanwhile."""
    _PROCESS.listener = listener
    try:
        yield
    finally:
        _PROCESS.listener = None


def settle_threads(step: Callable[[int], object], rows: int) -> None:
    """Choose the number of threads by a trial of the step that follows, once in a process, and log why at level DEBUG.

    Args:
        step: does what most of the time will be spent on, for so many rows, and leaves no trace.
        rows: of a whole step; fewer are tried where these take long.
    """
    if not _PROCESS.is_open:
        return
    _PROCESS.is_open = False
    threads = choose_threads(step, rows, _PROCESS.count, _set_threads)
    _set_threads(threads.number)
    log.debug(f"{threads.text}: {threads.why}")
    if _PROCESS.listener:
        _PROCESS.listener(threads)


def choose_threads(
    step: Callable[[int], object], rows: int, most: int, set_threads: Callable[[int], object]
) -> Threads:
    """Return the fewest threads that are hardly slower than the fastest of 1, 2, half and all; by turns, under 2 s."""
    start = time.perf_counter()

    def seconds(rows: int, count: int) -> float:
        set_threads(count)
        began = time.perf_counter()
        step(rows)
        return time.perf_counter() - began

    tried, last = _rows_to_try(lambda some: seconds(some, most), rows)
    took = dict[int, list[float]]()

    def is_time_for(step_seconds: float) -> bool:
        return time.perf_counter() - start + step_seconds < _SECONDS

    for count in sorted({1, min(2, most), max(1, most // 2), most}, reverse=True):
        if not is_time_for(_SLOWER * last):
            break
        last = seconds(tried, count)
        took[count] = [last]
        if last > _SLOWER * min(took.values())[0]:  # so are fewer
            break
    for count in (_ROUNDS - 1) * list(took):
        if is_time_for(took[count][0]):
            took[count].append(seconds(tried, count))
    if len(took) < 2:
        return Threads(most, f"a step for {tried} rows takes {last:.2g} s, too long to try other numbers")
    from statistics import median  # which a command that trains nothing needs not

    typical = {count: median(took[count]) for count in sorted(took)}
    chosen = next(count for count in typical if _WORTH * typical[count] <= min(typical.values()))
    each = (f"{1000 * of_count:.3g} ms with {count}" for count, of_count in typical.items())
    return Threads(chosen, f"a step takes {', '.join(each)}")


def _rows_to_try(seconds: Callable[[int], float], rows: int) -> tuple[int, float]:
    """Return how many rows are enough for a trial, and the seconds of a step for them."""
    tried, last = 1, seconds(1)  # libraries are loaded, and threads started
    if last < _SECONDS / 4:
        last = seconds(1)
    while tried < rows and last < _STEP_SECONDS / 2:  # a few rows cost hardly more than one
        tried = min(rows, 4 * tried)
        last = seconds(tried)
    return tried, last


def map_in_threads(function: Callable[[T], R], values: Iterable[T]) -> Iterator[R]:
    """Yield the results of a function in order; as many are computed at once as threads fit, each with a single one.

    The threads of a product wait for one another at its end. Those that compute different batches never do, so all are
    used, even if a trial has chosen fewer.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    shared = torch.get_num_threads()
    threads = max(shared, _PROCESS.most) if shared == _PROCESS.count else shared
    if threads < 2:
        yield from map(function, values)
        return
    _set_threads(1)  # threads that begin later take this number, too
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(function, values)
    finally:
        _set_threads(shared)


def _set_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
    _PROCESS.count = count


# --- Who else takes the cores ---


class CoreWatch:
    """Says once that others take the cores of this process, by how long its threads were ready and had none."""

    def __init__(self) -> None:
        self.began, self.before, self.is_told = time.monotonic(), _scheduled(), False

    def look(self) -> None:
        """Look at the last seconds, if enough have passed since the last look."""
        seconds = time.monotonic() - self.began
        if self.is_told or seconds < _WINDOW:
            return
        share = self.waiting_share()
        if share > _SHARE:
            self.is_told = True
            log.warning(f"others take the cores: for {share:.0%} of the last {seconds:.0f} s, this process had to wait")

    def waiting_share(self) -> float:
        """Return for which share of their time, since the last call, the threads waited for a core; 0 if unknown."""
        now = _scheduled()
        ran, waited = (max(0.0, after - before) for after, before in zip(now, self.before, strict=True))
        self.began, self.before = time.monotonic(), now
        return waited / (ran + waited) if waited else 0.0


class StepWatch:
    """Says once that the steps of a training take twice as long as they did, while others take the cores.

    Steps also grow with the length of texts, and with the layers that are trained: then no thread waits.
    """

    def __init__(self) -> None:
        self.cores, self.usual, self.times, self.is_told = CoreWatch(), 0.0, list[float](), False

    def add(self, seconds: float) -> None:
        """Note the seconds of a step."""
        self.times.append(seconds)
        if self.is_told or len(self.times) < _STEPS:
            return
        from statistics import median

        typical, share = median(self.times), self.cores.waiting_share()
        self.times.clear()
        self.usual = self.usual or typical
        if typical > _GROWTH * self.usual and share > _SHARE / 2:
            self.is_told = True
            remedy = "; --threads 1 may be faster" if _PROCESS.count > 1 else ""
            log.warning(f"a step takes {typical:.2g} s, where it took {self.usual:.2g}: others take the cores{remedy}")


def _scheduled() -> tuple[float, float]:
    """Return the seconds that the threads of this process ran, and those that they were ready and had no core."""
    ran, waited = 0, 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        try:
            of_thread: list[Any] = file.read_text(encoding="utf-8").split()
        except OSError:  # the thread has ended
            continue
        ran, waited = ran + int(of_thread[0]), waited + int(of_thread[1])
    return ran / 1e9, waited / 1e9
