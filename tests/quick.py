"""What commands do less often in tests than for users, in this process and in those of zygote.py."""

from __future__ import annotations

import copy
import functools
import importlib
import pickle
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

RESAMPLES = {
    "intervals.bootstrap_intervals": 20,
    "intervals.find_intervals": 20,
    "paired.compare_paired": 100,
    "paired.compare_seeds": 100,
}
"""Functions of bertkit.metrics -> how many resamples they draw in all tests but their own, in tests/metrics."""

TIMING = {
    "bertkit.hardware.speed._ROUNDS": 1,
    "bertkit.hardware.speed._IN_A_ROW": 1,
    "bertkit.hardware.speed._LEAST_SECONDS": 0.0,
    "bertkit.evaluation.parity._ALONE": 4,
}
"""How often models that are compared read each row, and how many rows one at a time."""


def draw_resamples(counts: Mapping[str, int]) -> dict[str, int]:
    """Set how many resamples these functions draw where nobody asks for a number; return how many it was."""
    before = {}
    for path, count in counts.items():
        module, _, name = path.partition(".")
        defaults = getattr(importlib.import_module(f"bertkit.metrics.{module}"), name).__kwdefaults__
        before[path], defaults["samples"] = defaults["samples"], count
    return before


def parse_once(parse: Callable[[str, object], Any]) -> Callable[[str, object], Any]:
    """Return a parser of YAML that parses each text once, and gives a copy to each caller."""
    once = functools.lru_cache(maxsize=500)(parse)
    return lambda text, file: copy.deepcopy(once(text, str(file) if file else None))


def write_once(demo_rows: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a writer of demo rows that writes those of a set once, and gives copies."""
    written: dict[tuple[object, ...], tuple[object, bytes]] = {}

    def write(demo_set: object, split: str, limit: int | None = None) -> list[Any]:
        key = (id(demo_set), split, limit)
        if key not in written:
            rows = pickle.dumps(demo_rows(demo_set, split, limit))
            written[key] = demo_set, rows  # the set too, so that no other gets its id
        return pickle.loads(written[key][1])

    return write


def skip_waste() -> None:
    """Let trainings look for no garbage at their end, and note no seed for devices that are not here."""
    if memory := sys.modules.get("accelerate.utils.memory"):
        memory.gc = SimpleNamespace(collect=int)
    for module in ("torch.cuda", "torch.xpu", "torch.mtia"):  # each would keep the stack of each seed
        device = sys.modules.get(module)
        if device and not hasattr(device, "seeds_nothing"):
            device.seeds_nothing = not device.is_available()
            if device.seeds_nothing:
                device.manual_seed_all = int
