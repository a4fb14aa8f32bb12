"""What limits a training step: its operations, the machine's fastest matrix products, and memory."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertkit.progress import SILENT, Progress, stage

_PASSES, _IN_A_ROW = 2, 2  # of a timing, of which the fastest counts
_ROWS = (1024, 4096)  # of the products tried, as in a small and a large batch


def training_operations(sizes: tuple[int, int, int], lengths: Sequence[int]) -> float:
    """Count the floating-point operations of a training step on texts of these lengths, without padding.

    The backward pass costs twice the forward pass. Counted are the matrix products of layers and attention, not those
    of embeddings and head.

    Args:
        sizes: number of layers, hidden size, intermediate size.
        lengths: tokens of each text.

    >>> training_operations((1, 2, 3), [5])
    1440.0
    """
    layers, hidden, intermediate = sizes
    products = 2 * sum(lengths) * (4 * hidden**2 + 2 * hidden * intermediate)
    attention = sum(4 * length**2 * hidden for length in lengths)
    return 3.0 * layers * (products + attention)


def fastest_products(device: str, precision: str, hidden: int, intermediate: int) -> float:
    """Measure the operations per second of the fastest of a model's matrix products in a precision."""
    import torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    turns = 20 if device == "cuda" else 1  # a single product of a GPU is too short to time
    best = 0.0
    for rows in _ROWS:
        for left, right in ((hidden, hidden), (hidden, intermediate), (intermediate, hidden)):
            texts = torch.ones(rows, left, dtype=dtype, device=device)
            weights = torch.ones(right, left, dtype=dtype, device=device)
            for _ in range(4):  # the first warms up
                start = time.perf_counter()
                for _ in range(turns):
                    torch.nn.functional.linear(texts, weights)
                if device == "cuda":
                    torch.cuda.synchronize()
                best = max(best, turns * 2 * rows * left * right / (time.perf_counter() - start))
    return best


def time_by_turns(
    runs: Sequence[Callable[[Any], object]], work: Sequence[Any], progress: Progress = SILENT
) -> list[list[float]]:
    """Measure the seconds that each function takes for each item of work: (functions, items).

    Functions take turns at every item, each twice in a row. The first time, others have filled the processor's caches,
    as they do not where one function runs alone. The fastest of all times counts, since other work on the machine slows
    them down.
    """
    fastest = [[math.inf] * len(work) for _ in runs]
    with stage(progress, "timing", _PASSES * len(work)):
        for turn in range(_PASSES):
            for index, item in enumerate(work):
                for run, seconds in zip(runs, fastest, strict=True):
                    seconds[index] = min(seconds[index], *(_time(run, item) for _ in range(_IN_A_ROW)))
                progress.update(turn * len(work) + index + 1, {})
    return fastest


def _time(run: Callable[[Any], object], item: Any) -> float:
    torch = sys.modules.get("torch")  # which exported models do not need
    start = time.perf_counter()
    run(item)
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def restart_peak_memory(device: str) -> bool:
    """Free unused memory and restart the measurement of its peak; return False where the system does not allow that."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return True
    _return_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory(device: str) -> int | None:
    """Return the peak memory since the last restart in bytes, of the GPU or of this process; None if unknown."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def waiting_seconds() -> float:
    """Return the seconds that this thread was ready to run and other programs used the processor; 0 if unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _return_freed_memory() -> None:
    """Return freed memory to the system, which otherwise counts it as used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
