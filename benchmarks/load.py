"""Load and memory of the machine, its description, and the operations of a training step."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

import bertkit
from bertkit.hardware.device import Device, find_device

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy")


def used_memory(pid: int, field: str = "VmRSS") -> float:
    """Return the memory of a program in MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def peak_memory(pid: int) -> float:
    """Return the peak memory of a program in MB."""
    return used_memory(pid, "VmHWM")


class Watch:
    """Monitor of the cores that programs other than the given ones use."""

    def __init__(self, *pids: int) -> None:
        self.processes = [psutil.Process(pid) for pid in pids]
        self.start = self._read()

    def foreign(self) -> float:
        """Return the mean number of cores that other programs used since the start."""
        wall, busy, watched = (now - before for now, before in zip(self._read(), self.start, strict=True))
        return max(0.0, (busy - watched) / wall)

    def _read(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq + times.steal
        watched = (process.cpu_times() for process in self.processes)
        return time.monotonic(), busy, sum(process.user + process.system for process in watched)


def training_flops(tokens: int, squares: int, *, layers: int, hidden: int, intermediate: int) -> float:
    """Compute the floating-point operations of a training step's matrix products on real tokens.

    The cost is three forward passes; embedding, pooler and head are not counted.

    Args:
        tokens: Real tokens of the batch.
        squares: Sum of the squared lengths of its rows.
        layers: Layers of the encoder.
        hidden: Width of the encoder.
        intermediate: Width inside its feed-forward layers.

    >>> training_flops(10, 58, layers=2, hidden=4, intermediate=16) == 3 * 2 * (20 * (64 + 128) + 4 * 58 * 4)
    True
    """
    products = 2 * tokens * (4 * hidden**2 + 2 * hidden * intermediate)
    return 3.0 * layers * (products + 4 * squares * hidden)


def get_shape(config: Any) -> dict[str, int]:
    """Return layers, hidden and intermediate width of an encoder's config (an object or a dict)."""
    values = config if isinstance(config, dict) else config.to_dict()
    names = {
        "layers": ("num_hidden_layers", "n_layers"),
        "hidden": ("hidden_size", "dim"),
        "intermediate": ("intermediate_size", "hidden_dim"),
    }
    return {name: next(values[key] for key in keys if key in values) for name, keys in names.items()}


def matrix_rates(shape: dict[str, int], seconds: float, device: Device, tokens: int) -> dict[str, float]:
    """Time the matrix products of a layer for some seconds; return operations per second by precision."""
    import torch

    hidden, wide = shape["hidden"], shape["intermediate"]
    rates = {}
    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16}.items():
        sizes = [(tokens, hidden), *((hidden, width) for width in (hidden,) * 4 + (wide,)), (tokens, wide)]
        state, *weights, middle = (torch.randn(size, dtype=dtype, device=device.type) for size in sizes)
        back = torch.randn(wide, hidden, dtype=dtype, device=device.type)
        turns = 1 if device.is_cpu else 50  # an accelerator is synchronized rarely
        count, start = -3 * turns, 0.0
        while count < 1 or time.perf_counter() - start < seconds:
            if count == 0:  # the warm-up is over
                start = time.perf_counter()
            for _ in range(turns):
                for weight in weights:
                    state @ weight
                middle @ back
            device.synchronize()
            count += turns
        operations = 2 * tokens * (4 * hidden**2 + 2 * hidden * wide)
        rates[name] = count * operations / (time.perf_counter() - start)
    return rates


def read_cpu_fields() -> dict[str, str]:
    """Return the fields of the last core in /proc/cpuinfo."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def cpu_flags() -> set[str]:
    """Return the names of the CPU's instruction sets."""
    fields = read_cpu_fields()
    return {*fields.get("flags", "").split(), *fields.get("Features", "").split()}


def machine(threads: int) -> dict[str, Any]:
    """Describe this machine and the versions in use."""
    fields = read_cpu_fields()
    model = fields.get("model name", platform.machine())
    return {
        "cpu": f"{model} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})",
        "cores": os.cpu_count(),
        "device": find_device().name,
        "threads": threads,
        "flags": sorted(cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16"}),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {**{name: version(name) for name in PACKAGES}, "bertkit": bertkit.__version__},
        "commit": _describe_commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def describe_machine(machine: dict[str, Any]) -> str:
    """Return the CPU, its threads and flags, and the date as a sentence."""
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    flags = ", ".join(machine["flags"]) or "no AVX-512, bf16 or AMX"
    return f"{machine['cpu']}, {threads}, {flags}. Measured on {machine['date']}."


def _describe_commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.check_output(command, text=True, cwd=Path(__file__).parent).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
