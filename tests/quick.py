"""What commands do less often in tests than for users, in this process and in those of zygote.py."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

RESAMPLES = {
    "intervals.bootstrap_intervals": 10,
    "intervals.find_intervals": 10,
    "paired.compare_paired": 100,
    "paired.compare_seeds": 100,
}
"""Functions of bertkit.metrics -> how many resamples they draw in all tests but their own, in tests/metrics."""

TIMING = {
    "bertkit.hardware.speed._ROUNDS": 1,
    "bertkit.hardware.speed._IN_A_ROW": 1,
    "bertkit.hardware.speed._MIN_SECONDS": 0.0,
    "bertkit.evaluation.parity._SINGLES": 4,
}
"""How often models that are compared read each row, and how many rows one at a time."""

TEXTS = "text", "text_pair"


def draw_resamples(counts: Mapping[str, int]) -> dict[str, int]:
    """Set how many resamples these functions draw where nobody asks for a number; return how many it was."""
    before = {}
    for path, count in counts.items():
        module, _, name = path.partition(".")
        defaults = getattr(importlib.import_module(f"bertkit.metrics.{module}"), name).__kwdefaults__
        before[path], defaults["samples"] = defaults["samples"], count
    return before


def compute_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes a result once for equal arguments, and gives a copy to each caller."""
    results: dict[bytes, bytes] = {}

    def compute(*arguments: object) -> Any:
        name = pickle.dumps(arguments)
        if name not in results:
            results[name] = pickle.dumps(function(*arguments))
        return pickle.loads(results[name])

    return compute


def fit_once(fit_tfidf: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fits the baseline of words once to the same texts and targets."""
    fit = compute_once(fit_tfidf)
    return lambda rows, targets: fit([{name: row[name] for name in TEXTS if name in row} for row in rows], targets)


def skip_waste() -> None:
    """Let trainings look for no garbage and for each package once, and note no seed for devices that are absent."""
    if memory := sys.modules.get("accelerate.utils.memory"):
        memory.gc = SimpleNamespace(collect=int)
    imports = sys.modules.get("accelerate.utils.imports")
    if imports and not hasattr(imports._is_package_available, "cache_info"):
        imports._is_package_available = functools.cache(imports._is_package_available)
    for module in ("torch.cuda", "torch.xpu", "torch.mtia"):  # each would keep the stack of each seed
        device = sys.modules.get(module)
        if device and not hasattr(device, "seeds_nothing"):
            device.seeds_nothing = not device.is_available()
            if device.seeds_nothing:
                device.manual_seed_all = int
