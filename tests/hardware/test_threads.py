"""Threads that fit: what a machine and its control groups allow, what a trial chooses, and who takes the cores."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest
import torch

from bertkit.hardware import threads
from bertkit.hardware.device import Device
from bertkit.hardware.threads import CoreWatch, StepWatch, Threads, choose_threads, fitting_threads, read_quota


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


V1 = "31 23 0:28 / {at} rw - tmpfs tmpfs rw\n32 31 0:29 ROOT {at}/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
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
            "4:cpu,cpuacct:/job\n0::/\n",
            V1.replace("ROOT", "/") + V2,
            {"cpu/job/cpu.cfs_quota_us": "100000\n", "cpu/job/cpu.cfs_period_us": "50000\n"},
            2,
        ),
        (
            "4:cpu:/docker/7\n",
            V1.replace("ROOT", "/docker/7"),
            {"cpu/cpu.cfs_quota_us": "75000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            0.75,
        ),
        (
            "5:cpuset:/x\n4:cpu:/a\n",
            V1.replace("ROOT", "/"),
            {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            math.inf,
        ),
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


@pytest.mark.parametrize("given", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_threads_sleep_soon_unless_the_user_says_how_they_wait(monkeypatch, given):
    for name in (*threads._WAITING, *threads._POOLS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    threads.prepare(3)
    expected = given or {"GOMP_SPINCOUNT": threads._SPINS}
    assert {name: os.environ[name] for name in threads._WAITING if name in os.environ} == expected
    assert os.environ["RAYON_NUM_THREADS"] == "3"


class Clock:
    """Steps that take as long as they are said to, with some number of threads."""

    def __init__(self, monkeypatch, seconds) -> None:
        self.now, self.seconds, self.count, self.tried = 0.0, seconds, 0, []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def set_threads(self, count: int) -> None:
        self.count = count

    def step(self, rows: int) -> None:
        self.now += rows * self.seconds(self.count)
        self.tried.append(self.count)


@pytest.mark.parametrize(
    ("seconds", "most", "chosen", "tried"),
    [
        (lambda count: 0.02 / count, 2, 2, {1, 2}),
        (lambda count: 0.02, 2, 1, {1, 2}),  # no gain
        (lambda count: 0.02 * count, 16, 1, {1, 2, 8, 16}),  # others have the cores
        (lambda count: 0.001 * max(1 / count, 1 / 7), 16, 8, {2, 8, 16}),
        (lambda count: 0.02 / count, 16, 16, {8, 16}),  # fewer are slower
        (lambda count: 0.3, 2, 1, {1, 2}),
        (lambda count: 9.0 / count, 2, 2, {2}),  # too long to be tried
    ],
)
def test_a_trial_chooses_the_fewest_that_are_hardly_slower(monkeypatch, seconds, most, chosen, tried):
    clock = Clock(monkeypatch, seconds)
    assert choose_threads(clock.step, 4, most, clock.set_threads).number == chosen
    assert set(clock.tried) == tried
    assert clock.now < 2 or tried == {most}


def test_a_trial_settles_the_number_of_a_process_once_and_tells_it(monkeypatch, process, caplog):
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "fitting_threads", lambda: threads.Threads(8, ""))
    assert threads.use_threads().number == 2  # no more than the program has set
    assert threads.is_open()
    clock, heard = Clock(monkeypatch, lambda count: 0.01 * count), []
    monkeypatch.setattr(torch, "set_num_threads", clock.set_threads)
    with threads.tell_choice(heard.append), caplog.at_level("DEBUG", "bertkit"):
        threads.settle_threads(clock.step, 4)
        threads.settle_threads(clock.step, 4)
    assert [found.number for found in heard] == [1] == [process.count]
    assert [line for line in caplog.messages if "1 thread" in line] == caplog.messages


def test_another_model_may_have_more_threads_than_the_one_before(monkeypatch):
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "fitting_threads", lambda: threads.Threads(8, ""))
    threads.use_threads()
    threads.settle_threads(lambda rows: time.sleep(0.001), 1)
    assert torch.get_num_threads() == 1
    assert threads.use_threads().number == 2


@pytest.mark.parametrize("given", ["OMP_NUM_THREADS", "WORLD_SIZE", "--threads", "before"])
def test_a_number_that_is_given_is_not_tried(monkeypatch, process, given):
    torch.set_num_threads(2)
    if given.isupper():
        monkeypatch.setenv(given, "2")
    process.option = Threads(2, "--threads") if given == "--threads" else None
    assert threads.use_threads(2 if given == "before" else None).number == 2
    threads.settle_threads(lambda rows: pytest.fail("it is tried"), 1)


@pytest.mark.parametrize(("waited", "is_told"), [(0.1, False), (5.0, True)])
def test_that_others_take_the_cores_is_told_once(monkeypatch, caplog, waited, is_told):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads, "_scheduled", lambda: (now[0], now[0] * waited / 10))
    watch = CoreWatch()
    for _ in range(40):
        now[0] += 1
        watch.look()
    assert len([line for line in caplog.messages if "others" in line]) == is_told


@pytest.mark.parametrize(("later", "waits", "is_told"), [(0.25, True, True), (0.25, False, False), (0.15, True, False)])
def test_a_step_that_grows_to_twice_is_told_once_with_its_remedy(monkeypatch, process, caplog, later, waits, is_told):
    process.count, reads = 2, iter(range(9**9))
    monkeypatch.setattr(threads, "_scheduled", lambda: (number := float(next(reads)), number * waits))
    watch = StepWatch()
    for seconds in [0.1] * 60 + [later] * 60:
        watch.add(seconds)
    assert len([line for line in caplog.messages if "--threads 1" in line]) == is_told


def test_the_scheduler_says_how_long_this_process_ran():
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not say")
    before, end = threads._scheduled(), time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = threads._scheduled()
    assert after[0] - before[0] > 0.02
    assert after[1] >= before[1]
