"""Threads and memory of this process.

OpenMP threads wait for one another hundreds of times in a training step. On an idle machine, they are fastest if they
spin while they wait. If other processes need the cores, spinning threads take a core from the thread they wait for.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from bertkit.hardware.device import Device, find_device
from bertkit.progress import log

_WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_BATCH_WORKERS = 4  # enough to keep a GPU busy with the largest batches that were measured
_POOL_VARIABLES = ("OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")  # read by numpy and by tokenizers
_CHECK_SECONDS, _CROWDED = 0.5, 0.1  # between checks of WaitSwitch; fraction of the time without a core
_MONITOR_SECONDS, _MAX_SHARE = 10.0, 0.25  # between checks of CpuContentionMonitor; fraction that it warns of

T = TypeVar("T")
R = TypeVar("R")


class Threads(NamedTuple):
    """Number of threads, and the reason for it, which can be empty."""

    number: int
    reason: str

    @property
    def text(self) -> str:
        """Number with a noun, such as "4 threads"."""
        return f"{self.number} thread{'' if self.number == 1 else 's'}"


@dataclass
class _Process:
    """State of this process."""

    option: Threads | None = None
    """The value of `--threads`."""
    default: int = 0
    """torch's number of threads before bertkit changed it: torch's default, or the choice of the calling program."""
    count: int = 0
    """Number of threads that bertkit has set."""


_PROCESS = _Process()


def prepare(option: int | None) -> None:
    """Store the value of `--threads`, and limit the thread pools of libraries that are imported later."""
    _PROCESS.option = Threads(option, "--threads") if option else None
    for name in _POOL_VARIABLES:
        os.environ.setdefault(name, str(available_threads().number))


def requested_threads() -> Threads | None:
    """Return the number of threads that `--threads` or `OMP_NUM_THREADS` requires, or None if neither is set."""
    if _PROCESS.option:
        return _PROCESS.option
    # A list has a number per level of nested teams; the first one is the outer team.
    value = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return Threads(int(value), "OMP_NUM_THREADS") if value.isdecimal() and int(value) else None


def available_threads() -> Threads:
    """Return the number of threads for this process: the requested number, or one per core."""
    return requested_threads() or _free_threads()


@cache
def _free_threads() -> Threads:
    """Return the number of threads that the machine allows this process; cached for every exported forward pass.

    Two logical processors of a core count as one, because they share its execution units. A quota is rounded down,
    because with one more thread, the system would stop all threads whenever the quota is used up.
    """
    processors = range(os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else processors
    cores, quota = len({*map(_find_core, allowed)}), read_quota()
    if quota < cores:
        return Threads(max(1, int(quota)), f"a quota of {quota:.3g} CPU{'' if quota == 1 else 's'}")
    total = len({*map(_find_core, processors)})
    return Threads(cores, f"{cores} of {total} cores may be used" if cores < total else "")


def batch_workers(requested: int | None) -> int:
    """Return the number of processes that build batches: the requested number, or enough to keep a GPU busy.

    On a CPU, training needs all cores, so there are no workers. Batches do not depend on their number.
    """
    if not hasattr(os, "fork"):  # Windows; forked processes share the memory map of the corpus.
        return 0
    if requested is not None:
        return requested
    return min(_BATCH_WORKERS, _free_threads().number - 1) if find_device().pins_memory else 0


def read_quota(process: Path = Path("/proc/self")) -> float:
    """Return the number of CPUs that a process's control groups allow, or infinity if there is no limit."""
    return min(map(_read_group_quota, control_groups(process)), default=math.inf)


def control_groups(process: Path = Path("/proc/self")) -> list[Path]:
    """Return the folders of a process's control groups (cgroup v2): its own group and all parent groups.

    In a container, the path of the group may not be mounted. Then the mounted folder is the process's own group.
    """
    try:
        groups, mounts = ((process / name).read_text(encoding="utf-8").split("\n") for name in ("cgroup", "mountinfo"))
    except OSError:
        return []
    # In cgroup v2, the line is "0::/path".
    group = next((PurePosixPath(line[3:]) for line in groups if line.startswith("0::")), None)
    if group is None:
        return []
    folders = list[Path]()
    for line in mounts:
        fields, _, system = line.partition(" - ")
        if system.startswith("cgroup2 "):
            root, point = fields.split()[3:5]
            folder = Path(point, group.relative_to(root) if group.is_relative_to(root) else "")
            folders += [folder, *(parent for parent in folder.parents if parent.is_relative_to(point))]
    return folders


def _read_group_quota(group: Path) -> float:
    """Return the number of CPUs that one control group allows."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no file, or "max"
        return math.inf


def _find_core(processor: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text(encoding="utf-8")
    except OSError:
        return str(processor)


# --- torch's threads ---


def use_threads(number: int | None = None, reason: str = "") -> Threads:
    """Set the number of torch's threads to `number`, or by default to `available_threads`.

    Without `--threads`, the default never exceeds the number that the calling program has set.
    """
    import torch

    if torch.get_num_threads() != _PROCESS.count:
        _PROCESS.default = torch.get_num_threads()
    if number is not None:
        threads = Threads(number, reason)
    elif (threads := available_threads()).reason != "--threads":
        threads = Threads(min(threads.number, _PROCESS.default), threads.reason)
    _set_threads(threads.number)
    if threads.number > 1 and not any(name in os.environ for name in _WAIT_VARIABLES):
        _watch_load()
    return threads


@cache
def _watch_load() -> None:
    """Start a thread that shortens the waits of OpenMP threads while other processes use the cores."""
    if libraries := _load_openmp():
        threading.Thread(target=_adapt_waits, args=[WaitSwitch(libraries)], daemon=True).start()


def _adapt_waits(switch: WaitSwitch) -> None:
    while True:
        time.sleep(_CHECK_SECONDS)
        switch.check()


def _load_openmp() -> list[ctypes.CDLL]:
    """Return the loaded copies of GCC's OpenMP library (GCC 9 or later); several packages load their own copy."""
    if not (maps := Path("/proc/self/maps")).exists():
        return []
    lines = maps.read_text(encoding="utf-8").split("\n")
    paths = {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}
    libraries = [ctypes.CDLL(path) for path in sorted(paths) if Path(path).exists()]
    return [library for library in libraries if hasattr(library, "omp_pause_resource_all")]


class WaitSwitch:
    """Switch between long and short waits of GCC's OpenMP threads, depending on the load of the machine.

    A thread spins 300,000 times before it sleeps, but only 100 times if the process has more OpenMP threads than CPUs
    (GCC's manual, `GOMP_SPINCOUNT`). That setting is read only when the library is loaded. So this class adds a team of
    sleeping threads while other processes use the cores. The number of computing threads stays the same, so sums keep
    their order.
    """

    def __init__(self, libraries: Sequence[Any]) -> None:
        self.libraries, self.cores, self.is_crowded = libraries, CpuContentionMonitor(), False

    def check(self) -> None:
        """Switch if the load since the last call has crossed the limit; always call from the same thread."""
        is_crowded = self.cores.waiting_share() > _CROWDED
        if is_crowded != self.is_crowded:
            self.is_crowded = is_crowded
            for library in self.libraries:
                if is_crowded:
                    # The team must run some function; this one has no effect.
                    library.GOMP_parallel(library.omp_in_parallel, None, library.omp_get_num_procs() + 1, 0)
                else:
                    library.omp_pause_resource_all(1)  # omp_pause_soft: end the team


def map_in_threads(function: Callable[[T], R], values: Iterable[T]) -> Iterator[R]:
    """Yield the results of a function in order, with one thread per value.

    Threads that compute one product together wait for one another at its end; threads with separate batches do not.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    threads = torch.get_num_threads()
    if threads < 2:
        yield from map(function, values)
        return
    _set_threads(1)  # also applies to threads that start later
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield from pool.map(function, values)
    finally:
        _set_threads(threads)


def _set_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
    _PROCESS.count = count


# --- Load by other processes ---


class CpuContentionMonitor:
    """Monitor that warns once if other processes compete for the CPU."""

    def __init__(self) -> None:
        self.started, self.last_times, self.has_warned = time.monotonic(), _read_thread_times(), False

    def check(self) -> None:
        """Warn if threads have waited too long for a core since the last check, at most every ten seconds."""
        seconds = time.monotonic() - self.started
        if self.has_warned or seconds < _MONITOR_SECONDS:
            return
        fraction = self.waiting_share()
        if fraction > _MAX_SHARE:
            self.has_warned = True
            log.warning(
                f"other processes use the CPU: threads waited for a core for {fraction:.0%} of the last {seconds:.0f} s"
            )

    def waiting_share(self) -> float:
        """Return the fraction of time that threads have waited for a core since the last call, or 0 if unknown."""
        now = _read_thread_times()
        ran, waited = (max(0.0, end - start) for end, start in zip(now, self.last_times, strict=True))
        self.started, self.last_times = time.monotonic(), now
        return waited / (ran + waited) if waited else 0.0


def _read_thread_times() -> tuple[float, float]:
    """Return the seconds that the threads of this process ran, and the seconds that they waited for a core."""
    ran, waited = 0, 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        try:
            times: list[Any] = file.read_text(encoding="utf-8").split()
        except OSError:  # The thread has ended.
            continue
        ran, waited = ran + int(times[0]), waited + int(times[1])
    return ran / 1e9, waited / 1e9


# --- Memory of the process ---

_ARENA_MAX, _MMAP_MAX, _TRIM_THRESHOLD = -8, -4, -1  # parameters of mallopt in malloc.h
_NEVER = 2**31 - 1  # bytes, the largest threshold


def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks for later allocations, and return whether glibc accepts the settings.

    By default, glibc maps each large block and unmaps it when it is freed, and the system clears every mapped page. In
    a training step, these blocks are all copies of weights and all gradients: 300 MB of each for BERT base. With one
    arena for all threads, the backward pass, which runs in a separate thread, reuses memory of the forward pass.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    settings = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))
    results = [libc.mallopt(ctypes.c_int(name), ctypes.c_int(value)) for name, value in settings]
    return all(results)


def restart_peak_memory(device: str, *, collect: bool = True) -> bool:
    """Free unused memory and restart the measurement of peak memory; return whether the system supports this.

    Without `collect`, Python's garbage is not collected, which would take a second once torch is imported.
    """
    if collect:
        gc.collect()
    if device != "cpu":
        if is_tracked := Device(device).tracks_memory:
            Device(device).restart_peak_memory()
        return is_tracked
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)  # returns freed memory to the system, which otherwise counts it as used
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def peak_memory(device: str) -> int | None:
    """Return the peak memory of the GPU or of this process in bytes since the last restart, or None if unknown."""
    if device != "cpu":
        return Device(device).peak_memory() if Device(device).tracks_memory else None
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def read_memory(process: Path = Path("/proc/self"), system: Path = Path("/proc/meminfo")) -> tuple[int, int] | None:
    """Return the bytes of memory that a process may use and the free bytes among them, or None if unknown.

    Control groups can allow less than the machine's memory. They count file pages as used, but inactive file pages are
    counted as free here, because the system can drop them.
    """
    try:
        lines = filter(None, system.read_text(encoding="utf-8").split("\n"))
        sizes = {name: 1024 * int(size) for name, size, *_ in map(str.split, lines)}
        total, free = sizes["MemTotal:"], sizes["MemAvailable:"]
    except (OSError, KeyError, ValueError):
        return None
    for group in control_groups(process):
        try:
            limit, used = (int((group / f"memory.{name}").read_text(encoding="utf-8")) for name in ("max", "current"))
            counts = dict(map(str.split, filter(None, (group / "memory.stat").read_text(encoding="utf-8").split("\n"))))
        except (OSError, ValueError):  # no file, or "max"
            continue
        total, free = min(total, limit), min(free, limit - used + int(counts.get("inactive_file", 0)))
    return total, free


def is_memory_error(error: BaseException) -> bool:
    """Return whether an error means that memory is too small; numpy, torch on the CPU, and accelerators differ.

    oneDNN, which multiplies for torch, then "could not create a primitive". If it could not create a "primitive
    descriptor", it does not support the operation, which is another error.

    >>> is_memory_error(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."))
    True
    >>> is_memory_error(RuntimeError("could not create a primitive"))
    True
    >>> is_memory_error(RuntimeError("could not create a primitive descriptor for a matmul primitive"))
    False
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error)
    return text == "could not create a primitive" or any(
        words in text for words in ("can't allocate memory", "MPS backend out of memory")
    )
