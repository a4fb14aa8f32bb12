"""What bounds a training step: its operations, the machine's fastest matrix products, its processors and memory."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertkit.progress import SILENT, Progress

# Encoders whose layers are four products of hidden by hidden and two of hidden by intermediate, and attention between
# all tokens of a text.
_PLAIN = ("albert", "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
_PASSES = 3
_ROWS = (1024, 4096)  # of the products tried: a small batch, a large one


def layer_sizes(config: Any) -> tuple[int, int, int] | None:
    """Give layers, hidden and intermediate size of an encoder; None where its layers are of another kind than BERT's.

    >>> from types import SimpleNamespace as Config
    >>> layer_sizes(Config(model_type="bert", num_hidden_layers=12, hidden_size=768, intermediate_size=3072))
    (12, 768, 3072)
    """
    if config.model_type not in _PLAIN:
        return None
    wide = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", None)  # DistilBERT's name
    sizes = (getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None), wide)
    return None if None in sizes else sizes  # type: ignore[return-value]


def training_operations(sizes: tuple[int, int, int], lengths: Sequence[int]) -> float:
    """Count the floating-point operations of a training step on texts of these lengths, padding left out.

    Forward once, backward twice as much, in the products of the layers and of attention. Embeddings and head are not
    counted.

    >>> training_operations((1, 2, 3), [5])
    1440.0
    """
    layers, hidden, intermediate = sizes
    products = 2 * sum(lengths) * (4 * hidden**2 + 2 * hidden * intermediate)
    attention = sum(4 * length**2 * hidden for length in lengths)
    return 3.0 * layers * (products + attention)


def fastest_products(device: str, precision: str, hidden: int, intermediate: int) -> float:
    """Measure the operations per second of a model's matrix products in a precision; the fastest of them counts."""
    import torch

    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    turns = 20 if device == "cuda" else 1  # there one product is too short to be timed
    best = 0.0
    for rows in _ROWS:
        for left, right in ((hidden, hidden), (hidden, intermediate), (intermediate, hidden)):
            texts = torch.ones(rows, left, dtype=kind, device=device)
            weights = torch.ones(right, left, dtype=kind, device=device)
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
    """Give the seconds that each run takes for each token of work.

    Runs take turns at every token, and the fastest of some passes counts, since other work on the machine disturbs.
    """
    import torch

    fastest = [[math.inf] * len(work) for _ in runs]
    progress.start("timing", _PASSES * len(work))
    for turn in range(_PASSES):
        for place, token in enumerate(work):
            for run, seconds in zip(runs, fastest, strict=True):
                start = time.perf_counter()
                run(token)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                seconds[place] = min(seconds[place], time.perf_counter() - start)
            progress.update(turn * len(work) + place + 1, {})
    progress.finish()
    return fastest


def restart_peak_memory(device: str) -> bool:
    """Free what nobody uses, and forget what was used at most before now; False where the system does not let us."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return True
    _give_memory_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory(device: str) -> int | None:
    """Give the bytes used at most since the last restart: of the GPU, or of this process; None where nobody knows."""
    if device == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def waiting_seconds() -> float:
    """Give how long this thread has waited, ready to run, for a processor that was doing other work; 0 if unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _give_memory_back() -> None:
    """Hand freed memory back to the system, which otherwise counts it as used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
