"""Memory: what is kept of what a step frees, its peak, errors that tell of too little, and the copies on the CPU.

Reading a number from a device, or finding where a mask is true, waits for all the work that was given to it before. Of
a batch, the CPU knows all that already: `to_device` keeps what it moved.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.hardware.device import Device
from bertkit.hardware.threads import control_groups

if TYPE_CHECKING:
    import torch


_ARENA_MAX, _MMAP_MAX, _TRIM_THRESHOLD = -8, -4, -1  # parameters of mallopt in malloc.h
_NEVER = 2**31 - 1  # bytes, the largest threshold


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks for later ones, in place of returning them to the system; return whether it will.

    By default glibc maps each large block anew and unmaps it when it is freed, and the system clears every page of it
    again. In a training step those are all copies of weights and all gradients: 300 MB of each for BERT base. One arena
    for all threads lets the backward pass, which has a thread of its own, reuse what the forward pass has freed.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    settings = ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))
    taken = [libc.mallopt(ctypes.c_int(name), ctypes.c_int(value)) for name, value in settings]
    return all(taken)


def restart_peak_memory(device: str, *, collect: bool = True) -> bool:
    """Free unused memory and restart the measurement of its peak; return False where the system does not allow that.

    Without `collect`, no garbage is looked for, which takes a second once torch is imported.
    """
    if collect:
        gc.collect()
    if device != "cpu":
        if tracked := Device(device).tracks_memory:
            Device(device).restart_peak_memory()
        return tracked
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)  # returns freed memory to the system, which otherwise counts it as used
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory(device: str) -> int | None:
    """Return the peak memory since the last restart in bytes, of the GPU or of this process; None if unknown."""
    if device != "cpu":
        return Device(device).peak_memory() if Device(device).tracks_memory else None
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def read_memory(process: Path = Path("/proc/self"), system: Path = Path("/proc/meminfo")) -> tuple[int, int] | None:
    """Return the bytes of memory that a process may have, and those of them that are free; None where unknown.

    Its control groups may allow less than the machine has. What they count as used but could drop, old pages of files,
    is free.
    """
    try:
        lines = filter(None, system.read_text(encoding="utf-8").split("\n"))
        sizes = {name: 1024 * int(size) for name, size, *_ in map(str.split, lines)}
        total, free = sizes["MemTotal:"], sizes["MemAvailable:"]
    except (OSError, KeyError, ValueError):
        return None
    for group in control_groups(process):
        try:
            limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
            counts = dict(map(str.split, filter(None, (group / "memory.stat").read_text().split("\n"))))
        except (OSError, ValueError):  # no file, or "max"
            continue
        total, free = min(total, limit), min(free, limit - used + int(counts.get("inactive_file", 0)))
    return total, free


def is_memory_error(error: BaseException) -> bool:
    """Tell whether an error says that memory is too small; numpy, torch on the CPU, and accelerators raise one each.

    oneDNN, which multiplies for torch, only says that it cannot make what it computes with. Of an operation that it
    does not have, it says that of a "primitive descriptor".

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


_COPY = "bertkit_host_copy"  # attribute of a tensor on a device


def to_device(values: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Move a tensor to a device, where `on_host` finds it; from pinned memory, nothing waits for it."""
    moved = values.to(device, non_blocking=True)
    Device(moved.device.type).share_rows(moved)
    return moved if moved is values else _keep(moved, values)


def on_host(values: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU: what it was moved from, or a copy, which waits for the device."""
    copy = host_copy(values)
    return values.cpu() if copy is None else copy


def host_copy(values: torch.Tensor) -> torch.Tensor | None:
    """Return what `to_device` moved, as the tensor or as another shape of it; None where that is not known."""
    if values.device.type == "cpu":
        return values
    copy: torch.Tensor | None = getattr(values, _COPY, None)
    base = values._base
    if copy is None and base is not None and base.numel() == values.numel() and values.is_contiguous():
        copy = getattr(base, _COPY, None)
        return None if copy is None else copy.reshape(values.shape)
    return copy


def derive(values: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Compute something of a tensor on its device and, where that is known, of its copy on the CPU."""
    copy, derived = host_copy(values), compute(values)
    return derived if copy is None or copy is values else _keep(derived, compute(copy))


def where(values: torch.Tensor, test: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Find where a test of each element holds: indices on the device, one tensor per axis, as `nonzero` gives them."""
    return tuple(test(on_host(values)).nonzero().T.contiguous().to(values.device, non_blocking=True))


def select(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the values where a mask is true, as boolean indexing does; see `where`."""
    return values[where(mask, lambda mask: mask)]


def _keep(moved: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    setattr(moved, _COPY, copy)
    return moved
