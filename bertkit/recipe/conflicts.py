"""What a user gives wins over a setting of the recipe that no longer fits it, with one line that says so.

Two settings that do not fit are refused only where both were given at the same time: both on the command line (or in
Python), or both in the user's own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bertkit.progress import log

KeyPath = tuple[str, ...]
Replace = Callable[[object, object], object]
"""Takes the value that wins and the one that may not fit; returns what takes its place: the same where it fits."""


def _shorter(max_length: object, short_length: object) -> object:
    numbers = _read_numbers(max_length, short_length)
    return None if numbers and numbers[1] >= numbers[0] else short_length


def _listed(metrics: object, best_metric: object) -> object:
    return best_metric if not isinstance(metrics, list) or not metrics or best_metric in metrics else metrics[0]


def _divisor(batch_size: object, micro_batches: object) -> object:
    """Find the largest number of micro-batches, up to the recipe's, that divides the batch: the result is the same."""
    numbers = _read_numbers(batch_size, micro_batches)
    if not numbers or not numbers[0] % numbers[1]:
        return micro_batches
    # Fewer micro-batches cost memory and change no result, so this one is adjusted and not refused.
    return max(number for number in range(1, numbers[1]) if numbers[0] % number == 0)


def _padded(torch_compile: object, unpad: object) -> object:
    return "auto" if torch_compile is True and unpad is True else unpad


def _kept_by_decay(schedule: object, decay_ratio: object) -> object:
    return decay_ratio if schedule == "warmup_stable_decay" else None


def _absent(_winner: object, _value: object) -> None:
    return None


def _read_numbers(*values: Any) -> list[int]:
    """Read whole numbers as the records will; an empty list where one is none, which they will refuse."""
    try:
        numbers = [int(value) for value in values]
    except (TypeError, ValueError):
        return []
    return numbers if min(numbers) > 0 else []


RULES: list[tuple[str, str, Replace]] = [
    ("training.max_length", "training.short_length", _shorter),
    ("training.epochs", "training.steps", _absent),
    ("training.epochs", "training.budget", _absent),
    ("training.steps", "training.budget", _absent),
    ("training.batch_size", "training.gradient_accumulation", _divisor),
    ("training.schedule", "training.decay_ratio", _kept_by_decay),
    ("training.torch_compile", "training.unpad", _padded),
    ("options.student_layers", "options.student_size", _absent),
    ("metrics", "best_metric", _listed),
    ("data.per_class", "data.train_limit", _absent),
    ("data.train_limit", "data.per_class", _absent),
]
"""The key that wins where it was given later, the key that gives way, and what takes its place."""


class Origin:
    """Where the keys of a recipe come from: what was typed comes after the recipe's file, and that after its parents.

    Args:
        typed: dotted keys from the command line, or from Python.
        written: key paths in the recipe's own file.
    """

    def __init__(self, typed: Iterable[str], written: Iterable[KeyPath]) -> None:
        self.typed = [tuple(key.split(".")) for key in typed]
        self.written = set(written)

    def rank(self, key: str) -> int:
        """Return 2 for a key that was typed, 1 for one of the recipe's file, 0 for one of its parents or a default."""
        path = tuple(key.split("."))
        if any(path[: len(typed)] == typed for typed in self.typed):
            return 2
        return int(path in self.written)


def settle(values: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Find the settings that give way to others that were given later: dotted key -> the value that takes its place.

    Each is logged in one line. What was given at the same time is left as it is, for the records to judge.
    """
    settled: dict[str, Any] = {}
    for winner, key, replace in RULES:
        leading, value = (settled.get(name, _get_value(values, name)) for name in (winner, key))
        # Only what was given later wins; two keys that were typed together contradict each other, which is an error.
        if leading is None or value is None or origin.rank(winner) <= origin.rank(key):
            continue
        new = replace(leading, value)
        if new != value:
            settled[key] = new
            outcome = "is left out" if new is None else f"is now {new}"
            leading, value = (str(one).lower() if isinstance(one, bool) else one for one in (leading, value))
            log.warning(f"{winner} {leading} does not go with the recipe's {key} {value}, which {outcome}")
    return settled


def _get_value(values: Mapping[str, Any], key: str) -> object:
    section, _, last = key.rpartition(".")
    content = values.get(section) if section else values
    return content.get(last) if isinstance(content, Mapping) else None
