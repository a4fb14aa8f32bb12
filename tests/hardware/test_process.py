"""Threads that fit a machine and its control groups, their waits, the load by other processes, and memory."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from bertkit.hardware import process as module
from bertkit.hardware.device import Device
from bertkit.hardware.process import CpuContentionMonitor, Threads, WaitSwitch, available_threads, read_quota


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A process that nobody has asked for a number of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    own = module._Process()
    monkeypatch.setattr(module, "_PROCESS", own)
    module._free_threads.cache_clear()
    yield own
    module._free_threads.cache_clear()
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
    monkeypatch.setattr(module, "read_quota", lambda: quota)
    monkeypatch.setattr(module, "_find_core", lambda processor: processor)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5}, raising=False)
    found = available_threads()
    assert found.number == number
    assert ("quota" in found.reason) == (quota < 4)


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
    monkeypatch.setattr(module, "find_device", lambda: Device(device))
    monkeypatch.setattr(module, "read_quota", lambda: cores)
    monkeypatch.setattr(module, "_find_core", lambda processor: processor)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert module.batch_workers(asked) == workers


def test_processors_of_one_core_count_once(monkeypatch):
    monkeypatch.setattr(module, "read_quota", lambda: math.inf)
    monkeypatch.setattr(module, "_find_core", lambda processor: processor // 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert available_threads().number == 2


def test_the_command_line_comes_before_the_environment(monkeypatch, process):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert available_threads() == (3, "OMP_NUM_THREADS")
    process.option = Threads(2, "--threads")
    assert available_threads() == (2, "--threads")
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    process.option = None
    assert available_threads().reason != "OMP_NUM_THREADS"


def test_pools_of_other_libraries_have_the_required_number(monkeypatch):
    for name in (*module._POOL_VARIABLES, *module._WAIT_VARIABLES):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    module.prepare(3)
    assert [os.environ[name] for name in module._POOL_VARIABLES] == ["3", "3"]
    assert not any(name in os.environ for name in module._WAIT_VARIABLES)


def test_a_program_keeps_its_smaller_number_of_threads(monkeypatch, process):
    monkeypatch.setattr(module, "_watch_load", lambda: None)
    monkeypatch.setattr(module, "read_quota", lambda: math.inf)
    monkeypatch.setattr(module, "_find_core", lambda processor: processor)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    torch.set_num_threads(2)
    assert module.use_threads().number == torch.get_num_threads() == 2
    assert module.use_threads(1, "as before").number == torch.get_num_threads() == 1
    assert module.use_threads().number == 2
    process.option = Threads(3, "--threads")
    assert module.use_threads() == (3, "--threads")


@pytest.mark.parametrize(
    ("count", "variables", "is_watched"),
    [(2, {}, True), (1, {}, False), (2, {"GOMP_SPINCOUNT": "7"}, False), (2, {"OMP_WAIT_POLICY": "active"}, False)],
)
def test_waits_are_adapted_unless_the_user_sets_them(monkeypatch, count, variables, is_watched):
    for name in module._WAIT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    calls = []
    monkeypatch.setattr(module, "_watch_load", lambda: calls.append(1))
    module.use_threads(count)
    assert bool(calls) == is_watched


class Load:
    """Other processes that keep the threads of this one from a core for a fraction of the time."""

    def __init__(self, monkeypatch) -> None:
        self.ran, self.waited = 0.0, 0.0
        monkeypatch.setattr(module, "_read_thread_times", lambda: (self.ran, self.waited))

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
    libraries = module._load_openmp()
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
    monkeypatch.setattr(module, "_read_thread_times", lambda: (now[0], now[0] * waited / 10))
    watch = CpuContentionMonitor()
    for _ in range(40):
        now[0] += 1
        watch.check()
    assert len([line for line in caplog.messages if "other processes use the CPU" in line]) == is_told


def test_the_scheduler_says_how_long_this_process_ran():
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not say")
    before, end = module._read_thread_times(), time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = module._read_thread_times()
    assert after[0] - before[0] > 0.02
    assert after[1] >= before[1]


# --- Memory ---


FAULTS = """
import resource, sys
import numpy as np
from bertkit.hardware.process import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(64 << 20, dtype=np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    assert keep_freed_memory()
faults()
print(faults())
"""


def count_faults(choice: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, choice], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_a_block_that_was_freed_is_used_again():
    assert count_faults("kept") < 10
    assert count_faults("usual") > 20  # a page each, even if pages are huge


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(module.platform, "libc_ver", lambda: ("", ""))
    assert not module.keep_freed_memory()


def test_peak_memory_starts_anew():
    torch.ones(4_000_000).sum()
    if not module.restart_peak_memory("cpu") or module.peak_memory("cpu") is None:
        pytest.skip("this system does not measure a peak")
    before = module.peak_memory("cpu")
    kept = torch.ones(10_000_000)
    assert module.peak_memory("cpu") - before > 0.8 * kept.nbytes


MEMINFO = (
    "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\nHugePages_Total:       0\n"
)
MB = 1024**2


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        ("", "", {}, (16_384_000_000, 8_192_000_000)),
        ("0::/a\n", V2, {"two/a/memory.max": "max\n"}, (16_384_000_000, 8_192_000_000)),
        (
            "0::/a/b\n",
            V2,
            {
                "two/a/memory.max": f"{1000 * MB}\n",
                "two/a/memory.current": f"{700 * MB}\n",
                "two/a/memory.stat": f"anon 5\ninactive_file {200 * MB}\n",
            },
            (1000 * MB, 500 * MB),
        ),
    ],
)
def test_memory_is_what_control_groups_leave_of_the_system(tmp_path, groups, mounts, files, expected):
    (tmp_path / "meminfo").write_text(MEMINFO)
    process = write_groups(tmp_path, groups, mounts, files)
    assert module.read_memory(process, tmp_path / "meminfo") == expected


def test_memory_of_a_system_that_does_not_tell_is_unknown(tmp_path):
    assert module.read_memory(tmp_path, tmp_path / "nothing") is None
