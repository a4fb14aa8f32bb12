"""How busy the machine is beside what is measured, how much memory a program took, and what a step computes."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertkit.hardware.device import Device, find_device

_TICK = os.sysconf("SC_CLK_TCK")
PACKAGES = ("torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy")


def busy_seconds(stat: str) -> float:
    """Return the CPU seconds that all cores together were not idle, stolen time included, from the text of /proc/stat.

    >>> busy_seconds("cpu  100 0 50 900 30 5 5 40 20 0") * _TICK
    200.0
    """
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICK


def cpu_seconds(stat: str) -> float:
    """Return the CPU seconds of all threads of a program, from the text of its /proc/PID/stat.

    >>> cpu_seconds("7 (a (b) c) S 1 1 1 0 -1 0 0 0 0 0 150 50 9 9 20") * _TICK
    200.0
    """
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def used_memory(pid: int, field: str = "VmRSS") -> float:
    """Return the memory of a program, in MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def peak_memory(pid: int) -> float:
    """Return the peak memory of a program, in MB."""
    return used_memory(pid, "VmHWM")


class Watch:
    """Measures, from its making on, the cores that others used beside the given programs."""

    def __init__(self, *pids: int) -> None:
        self.pids = pids
        self.start = self._read()

    def foreign(self) -> float:
        """Return the cores in use by others, on average since the start."""
        wall, busy, own = (now - before for now, before in zip(self._read(), self.start, strict=True))
        return max(0.0, (busy - own) / wall)

    def _read(self) -> tuple[float, float, float]:
        busy = busy_seconds(Path("/proc/stat").read_text())
        own = sum(cpu_seconds(Path(f"/proc/{pid}/stat").read_text()) for pid in self.pids)
        return time.monotonic(), busy, own


def training_flops(tokens: int, squares: int, *, layers: int, hidden: int, intermediate: int) -> float:
    """Compute the floating-point operations of a training step's matrix products on real tokens.

    Three times the forward pass; embedding, pooler and head are not counted.

    Args:
        tokens: real tokens of the batch.
        squares: the sum of the squares of its rows' lengths.
        layers: of the encoder.
        hidden: its width.
        intermediate: the width inside its feed-forward layers.

    >>> training_flops(10, 58, layers=2, hidden=4, intermediate=16) == 3 * 2 * (20 * (64 + 128) + 4 * 58 * 4)
    True
    """
    products = 2 * tokens * (4 * hidden**2 + 2 * hidden * intermediate)
    return 3.0 * layers * (products + 4 * squares * hidden)


def shape_of(config: Any) -> dict[str, int]:
    """Return layers, hidden and intermediate width of an encoder's configuration (a record or a dict)."""
    values = config if isinstance(config, dict) else config.to_dict()
    names = {
        "layers": ("num_hidden_layers", "n_layers"),
        "hidden": ("hidden_size", "dim"),
        "intermediate": ("intermediate_size", "hidden_dim"),
    }
    return {name: next(values[key] for key in keys if key in values) for name, keys in names.items()}


def matrix_rates(shape: dict[str, int], seconds: float, computes: Device, tokens: int) -> dict[str, float]:
    """Time the matrix products of a layer for some seconds; return operations per second by precision."""
    import torch

    device = computes.type
    hidden, wide = shape["hidden"], shape["intermediate"]
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    rates = {}
    for name, dtype in dtypes.items():
        state = torch.randn(tokens, hidden, dtype=dtype, device=device)
        weights = [torch.randn(hidden, width, dtype=dtype, device=device) for width in (hidden,) * 4 + (wide,)]
        middle, back = (torch.randn(size, dtype=dtype, device=device) for size in ((tokens, wide), (wide, hidden)))
        turns = 1 if computes.is_cpu else 50  # an accelerator is waited for only now and then
        count, began = -3 * turns, 0.0
        while count < 1 or time.perf_counter() - began < seconds:
            if count == 0:  # the first turns have warmed up
                began = time.perf_counter()
            for _ in range(turns):
                for weight in weights:
                    state @ weight
                middle @ back
            computes.synchronize()
            count += turns
        operations = 2 * tokens * (4 * hidden**2 + 2 * hidden * wide)
        rates[name] = count * operations / (time.perf_counter() - began)
    return rates


def cpu_flags() -> set[str]:
    """Return the names of the CPU's instruction sets, from /proc/cpuinfo."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return {flag for name, _, value in lines if name.strip() in ("flags", "Features") for flag in value.split()}


def machine(threads: int) -> dict[str, Any]:
    """Describe this machine and the versions in use."""
    import bertkit

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": f"{facts.get('model name', platform.machine())} (family {facts.get('cpu family', '?')},"
        f" model {facts.get('model', '?')})",
        "cores": os.cpu_count(),
        "device": find_device().name,
        "threads": threads,
        "flags": sorted(cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16"}),
        "memory_gib": round(memory, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {**{name: version(name) for name in PACKAGES}, "bertkit": bertkit.__version__},
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def describe_machine(facts: dict[str, Any]) -> str:
    """Name the CPU, its threads and its flags, and the day."""
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    flags = ", ".join(facts["flags"]) or "no AVX-512, bf16 or AMX"
    return f"{facts['cpu']}, {threads}, {flags}. Measured on {facts['date']}."


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
