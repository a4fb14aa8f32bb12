"""Threads that fit a machine and its control groups, their waits, and the load by other processes."""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from bertkit.hardware import threads
from bertkit.hardware.device import Device
from bertkit.hardware.threads import CoreWatch, Threads, WaitSwitch, fitting_threads, read_quota


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A process that nobody has asked for a number of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    own = threads._Process()
    monkeypatch.setattr(threads, "_PROCESS", own)
    threads._free_threads.cache_clear()
    yield own
    threads._free_threads.cache_clear()
    torch.set_num_threads(1)


def write_groups(folder: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """Write the tree of control groups of a process that has never run, and return its folder of /proc."""
    process = folder / "proc"
    process.mkdir()
    (process / "cgroup").write_text(groups)
    (process / "mountinfo").write_text(mounts.format(at=folder))
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return process


V2 = "41 31 0:38 / {at}/two rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "quota"),
    [
        ("0::/job\n", V2, {"two/job/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", V2, {"two/a/b/cpu.max": "400000 100000\n", "two/a/cpu.max": "200000 100000\n"}, 2),
        ("0::/a/b\n", V2, {"two/a/b/cpu.max": "max 100000\n", "two/a/cpu.max": "max 100000\n"}, math.inf),
        ("0::/\n", V2, {"two/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/../elsewhere\n", V2, {"two/cpu.max": "300000 100000\n"}, 3),
        (
            "4:cpu:/old\n0::/job\n",
            "32 31 0:29 / {at}/cpu rw - cgroup cgroup rw,cpu\n" + V2,
            {"two/job/cpu.max": "100000 50000\n"},
            2,
        ),
        ("4:cpu:/old\n", "32 31 0:29 / {at}/cpu rw - cgroup cgroup rw,cpu\n", {}, math.inf),
        ("", "", {}, math.inf),
    ],
)
def test_a_quota_is_that_of_the_narrowest_group(tmp_path, groups, mounts, files, quota):
    assert read_quota(write_groups(tmp_path, groups, mounts, files)) == quota


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert read_quota(tmp_path) == math.inf


@pytest.mark.parametrize(("quota", "number"), [(0.5, 1), (1.0, 1), (1.5, 1), (2.0, 2), (math.inf, 4)])
def test_whole_cpus_of_a_quota_count(monkeypatch, quota, number):
    monkeypatch.setattr(threads, "read_quota", lambda: quota)
    monkeypatch.setattr(threads, "_core_of", lambda processor: processor)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5}, raising=False)
    found = fitting_threads()
    assert found.number == number
    assert ("quota" in found.why) == (quota < 4)


@pytest.mark.parametrize(
    ("device", "cores", "asked", "workers"),
    [
        ("cpu", 16, None, 0),
        ("cuda", 16, None, 4),
        ("cuda", 3, None, 2),
        ("cuda", 1, None, 0),
        ("cuda", 1, 2, 2),
        ("cpu", 2, 1, 1),
    ],
)
def test_batches_are_built_beside_a_gpu_and_not_beside_a_cpu(monkeypatch, device, cores, asked, workers):
    monkeypatch.setattr(threads, "find_device", lambda: Device(device))
    monkeypatch.setattr(threads, "read_quota", lambda: cores)
    monkeypatch.setattr(threads, "_core_of", lambda processor: processor)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert threads.batch_workers(asked) == workers


def test_processors_of_one_core_count_once(monkeypatch):
    monkeypatch.setattr(threads, "read_quota", lambda: math.inf)
    monkeypatch.setattr(threads, "_core_of", lambda processor: processor // 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert fitting_threads().number == 2


def test_the_command_line_comes_before_the_environment(monkeypatch, process):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert fitting_threads() == (3, "OMP_NUM_THREADS")
    process.option = Threads(2, "--threads")
    assert fitting_threads() == (2, "--threads")
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    process.option = None
    assert fitting_threads().why != "OMP_NUM_THREADS"


def test_pools_of_other_libraries_have_the_required_number(monkeypatch):
    for name in (*threads._POOLS, *threads._WAITING):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    threads.prepare(3)
    assert [os.environ[name] for name in threads._POOLS] == ["3", "3"]
    assert not any(name in os.environ for name in threads._WAITING)


def test_a_program_keeps_its_smaller_number_of_threads(monkeypatch, process):
    monkeypatch.setattr(threads, "_watch_load", lambda: None)
    monkeypatch.setattr(threads, "read_quota", lambda: math.inf)
    monkeypatch.setattr(threads, "_core_of", lambda processor: processor)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    torch.set_num_threads(2)
    assert threads.use_threads().number == torch.get_num_threads() == 2
    assert threads.use_threads(1, "as before").number == torch.get_num_threads() == 1
    assert threads.use_threads().number == 2
    process.option = Threads(3, "--threads")
    assert threads.use_threads() == (3, "--threads")


@pytest.mark.parametrize(
    ("count", "variables", "is_watched"),
    [(2, {}, True), (1, {}, False), (2, {"GOMP_SPINCOUNT": "7"}, False), (2, {"OMP_WAIT_POLICY": "active"}, False)],
)
def test_waits_are_adapted_unless_the_user_sets_them(monkeypatch, count, variables, is_watched):
    for name in threads._WAITING:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    calls = []
    monkeypatch.setattr(threads, "_watch_load", lambda: calls.append(1))
    threads.use_threads(count)
    assert bool(calls) == is_watched


class Load:
    """Other processes that keep the threads of this one from a core for a fraction of the time."""

    def __init__(self, monkeypatch) -> None:
        self.ran, self.waited = 0.0, 0.0
        monkeypatch.setattr(threads, "_scheduled", lambda: (self.ran, self.waited))

    def add(self, waiting_share: float) -> None:
        self.ran, self.waited = self.ran + 1 - waiting_share, self.waited + waiting_share


class FakeOpenMP:
    """OpenMP library with 4 CPUs that records the teams that are started and ended."""

    omp_in_parallel = "a harmless function"

    def __init__(self) -> None:
        self.calls = []

    def omp_get_num_procs(self) -> int:
        return 4

    def GOMP_parallel(self, function, data, count, flags) -> None:
        self.calls.append(count)

    def omp_pause_resource_all(self, kind) -> None:
        self.calls.append("end")


def test_waits_are_short_while_other_processes_use_the_cores(monkeypatch):
    load, library = Load(monkeypatch), FakeOpenMP()
    switch = WaitSwitch([library])
    for waiting_share in (0.0, 0.01, 0.5, 0.4, 0.3, 0.02, 0.0, 0.3):
        load.add(waiting_share)
        switch.check()
    assert library.calls == [5, "end", 5]  # one thread more than CPUs


def test_the_added_team_of_the_real_library_ends_with_the_load(monkeypatch):
    libraries = threads._load_openmp()
    if not libraries:
        pytest.skip("this system has another OpenMP library")

    def count_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    load, counts = Load(monkeypatch), []

    def compute() -> None:
        switch = WaitSwitch(libraries)
        for waiting_share in (0.5, 0.0):
            load.add(waiting_share)
            switch.check()
            deadline = time.monotonic() + 10
            while waiting_share == 0.0 and count_threads() > before and time.monotonic() < deadline:
                time.sleep(0.01)
            counts.append(count_threads())

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        before = count_threads()
        pool.submit(compute).result()
    assert counts[0] > before
    assert counts[1] < counts[0]


@pytest.mark.parametrize(("waited", "is_told"), [(0.1, False), (5.0, True)])
def test_that_others_take_the_cores_is_told_once(monkeypatch, caplog, waited, is_told):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads, "_scheduled", lambda: (now[0], now[0] * waited / 10))
    watch = CoreWatch()
    for _ in range(40):
        now[0] += 1
        watch.look()
    assert len([line for line in caplog.messages if "other processes use the CPU" in line]) == is_told


def test_the_scheduler_says_how_long_this_process_ran():
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not say")
    before, end = threads._scheduled(), time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = threads._scheduled()
    assert after[0] - before[0] > 0.02
    assert after[1] >= before[1]
