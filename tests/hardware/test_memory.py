"""Freed memory stays with the process, so a step does not wait for the system to clear pages."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from bertkit.hardware import memory
from tests.hardware.test_threads import V2, write_groups

FAULTS = """
import resource, sys
import numpy as np
from bertkit.hardware.memory import keep_freed_memory

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
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    assert not memory.keep_freed_memory()


def test_peak_memory_starts_anew():
    torch.ones(4_000_000).sum()
    if not memory.restart_peak_memory("cpu") or memory.peak_memory("cpu") is None:
        pytest.skip("this system does not measure a peak")
    before = memory.peak_memory("cpu")
    kept = torch.ones(10_000_000)
    assert memory.peak_memory("cpu") - before > 0.8 * kept.nbytes


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
    assert memory.read_memory(process, tmp_path / "meminfo") == expected


def test_memory_of_a_system_that_does_not_tell_is_unknown(tmp_path):
    assert memory.read_memory(tmp_path, tmp_path / "nothing") is None
