"""Memory: what a step frees stays with the process, for the next step; and errors that say that there is too little."""

from __future__ import annotations

import ctypes
import platform

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


def is_memory_error(error: BaseException) -> bool:
    """Tell whether an error says that memory is too small; numpy, torch on the CPU, and accelerators raise one each.

    >>> is_memory_error(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."))
    True
    """
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in ("can't allocate memory", "MPS backend out of memory"))
