"""A machine with a planted fault each: what the doctor says of it, and that its line has a remedy."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertkit.errors import ResourceError, UnavailableError
from bertkit.hardware import device
from bertkit.hardware.process import Threads
from bertkit.storage import files
from bertkit.workflows import doctor
from bertkit.workflows.doctor import (
    Diagnosis,
    check_device,
    check_disks,
    check_hub,
    check_memory,
    check_packages,
    examine_machine,
)

GB = 10**9


def by_name(check):
    return {finding.name: finding for finding in check()}


@pytest.fixture
def untried(monkeypatch):
    """Time no product of matrices to choose a precision."""
    monkeypatch.setattr("bertkit.hardware.precision._measure_gain", lambda device, dtype, widths: 1.0)


@pytest.fixture
def versions(monkeypatch):
    """Let packages be installed in other versions; None for one that is not."""

    def set_versions(**changed):
        find = doctor._find_version
        monkeypatch.setattr(doctor, "_find_version", lambda name: changed[name] if name in changed else find(name))

    return set_versions


def test_the_packages_of_this_environment_fit():
    assert {finding.level for finding in check_packages()} == {"good"}


def test_an_old_version_is_named_with_what_is_needed(versions):
    versions(transformers="4.57.6")
    found = by_name(check_packages)
    assert found["versions"].level == "fail"
    assert re.search(r"bertkit requires transformers<6,>=5\.\d+, installed is 4\.57\.6", found["versions"].text)
    assert "pip install" in found["versions"].text
    assert isinstance(Diagnosis("", list(found.values())).error, UnavailableError)


def test_a_missing_package_is_named(versions):
    versions(scipy=None)
    assert re.search(r"bertkit requires scipy>=1\.\d+, installed is none", by_name(check_packages)["versions"].text)


def test_a_copy_of_bertkit_that_is_not_installed_has_its_versions(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "distributions", lambda name: [])
    assert by_name(check_packages)["versions"].level == "good"


def test_the_device_computes_and_the_trial_says_why():
    found = by_name(check_device)
    assert found["device"].text == "CPU: a matrix product and its gradient are correct"
    assert "fp32" in found["precision"].text or "bf16" in found["precision"].text


def test_a_device_that_is_not_here_or_fails_is_a_fault(monkeypatch, untried):
    monkeypatch.setattr(device._PROCESS, "option", "cuda")
    found = by_name(check_device)
    assert found["device"].level == "fail"
    assert "--device cpu" in found["device"].text
    monkeypatch.setattr(device._PROCESS, "option", "cpu")
    monkeypatch.setattr(doctor, "_can_multiply", lambda _: False)
    assert by_name(check_device)["device"].level == "fail"

    def fail(_):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(doctor, "_can_multiply", fail)
    assert "no kernel image" in by_name(check_device)["device"].text


@pytest.mark.parametrize(("free", "level"), [(0.5, "fail"), (2, "warn"), (20, "good")])
def test_little_memory_is_a_fault(monkeypatch, free, level):
    monkeypatch.setattr(doctor, "read_memory", lambda: (32 * GB, int(free * GB)))
    finding = by_name(check_memory)["memory"]
    assert finding.level == level
    assert finding.text.startswith(f"{free:.1f} of 32.0 GB are free")
    assert ("--batch-size" in finding.text) == (level != "good")


def test_processors_are_those_of_quota_and_affinity_and_may_be_busy(monkeypatch):
    monkeypatch.setattr(doctor, "available_threads", lambda: Threads(1, "a quota of 1.5 CPUs"))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    finding = by_name(check_memory)["processors"]
    assert (finding.level, "1 thread (a quota of 1.5 CPUs)" in finding.text) == ("good", True)
    monkeypatch.setattr(os, "getloadavg", lambda: (500.0, 0.5, 0.5))
    assert by_name(check_memory)["processors"].level == "warn"


@pytest.mark.parametrize(
    ("free", "inodes", "level"),
    [
        (50 * GB, 10**6, "good"),
        (2 * GB, 10**6, "warn"),
        (10**8, 10**6, "fail"),
        (50 * GB, 0, "fail"),
        (50 * GB, None, "good"),
    ],
)
def test_a_full_disk_is_one_without_bytes_or_without_inodes(monkeypatch, here, free, inodes, level):
    monkeypatch.setattr(files, "free_space", lambda _: (free, inodes))
    findings = [finding for finding in check_disks() if finding.name.startswith("space")]
    assert [finding.level for finding in findings] == [level, level]
    more = "" if inodes is None else f"{inodes:,} files can be created"
    assert all(more in finding.text for finding in findings)
    error = Diagnosis("", findings).error
    assert (type(error) is ResourceError) == (level == "fail")


def test_a_folder_that_cannot_be_written_or_locked_is_named(monkeypatch, here):
    @contextmanager
    def refuse(lock):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(lock))
        yield

    monkeypatch.setattr(files, "hold_lock", refuse)
    finding = by_name(check_disks)["writing to the working folder"]
    assert finding.level == "fail"
    assert "Read-only file system - make the file system writable again" in finding.text


def test_a_file_system_without_locks_is_a_doubt_and_nothing_is_left(monkeypatch, here):
    import filelock

    def has_none(*_, **__):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(filelock.FileLock, "acquire", has_none)
    finding = by_name(check_disks)["writing to the working folder"]
    assert finding.level == "warn"
    assert "no locks" in finding.text
    assert list(here.iterdir()) == []


def test_a_slow_disk_is_a_doubt(monkeypatch, here):
    monkeypatch.setattr(doctor, "_try_folder", lambda _: (2.5, True))
    finding = by_name(check_disks)["writing to the working folder"]
    assert (finding.level, "2,500.0 ms" in finding.text) == ("warn", True)


def test_little_shared_memory_is_a_doubt(monkeypatch, here):
    free = files.free_space
    monkeypatch.setattr(doctor, "_SHM", here)
    monkeypatch.setattr(files, "free_space", lambda file: (67_108_864, 1) if file == here else free(file))
    finding = by_name(check_disks)["shared memory"]
    assert (finding.level, "67 MB are free - docker run --shm-size" in finding.text) == ("warn", True)


def test_the_cache_is_measured(monkeypatch, here):
    monkeypatch.setenv("BERTKIT_CACHE", str(here / "cache"))
    (here / "cache" / "features").mkdir(parents=True)
    (here / "cache" / "features" / "part").write_bytes(bytes(3 * 10**6))
    assert "3 MB" in by_name(check_disks)["cache size"].text


def test_offline_mode_is_named_and_a_token_is_not_shown(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = by_name(check_hub)
    assert found["hub"].text == "HF_HUB_OFFLINE is set - unset it to download missing files"
    assert found["token"].text == "a token is set"


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_a_hub_that_answers_is_good_and_one_that_does_not_a_doubt(loopback, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert by_name(check_hub)["hub"].text == f"{loopback.url} answers"
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    finding = by_name(check_hub)["hub"]
    assert finding.level == "warn"
    assert "the Hub cannot be reached" in finding.text
    assert "HF_ENDPOINT" in finding.text


def test_every_check_has_its_lines(here, untried):
    findings = examine_machine()
    assert {finding.group for finding in findings} == {"packages", "device", "memory", "disks", "hub"}
    assert all(finding.text and (finding.level == "good" or " - " in finding.text) for finding in findings)
    assert Path.cwd() == here
