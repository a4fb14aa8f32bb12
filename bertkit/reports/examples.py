"""Evaluated rows, and the mistakes among them that are worth a look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Answer = str | float | list[str]
"""A label name or other text, a number, or the names of a multi-label row."""

MOST_MISTAKES = 10


@dataclass(frozen=True)
class Example:
    """One evaluated row: its columns as (name, text), the gold answer and the prediction."""

    id: str
    text: list[tuple[str, str]]
    gold: Answer
    predicted: Answer
    probabilities: dict[str, float] | None = None
    length: int | None = None
    """Tokens of the encoded row."""
    right: bool | None = None
    """Whether the answer counts as right, where that cannot be read off gold and predicted."""
    confidence: float | None = None


def find_named(
    examples: Sequence[Example], labels: Sequence[str]
) -> list[tuple[Example, frozenset[str], frozenset[str]]]:
    """Give the rows whose answers are label names, as (row, gold names, predicted names)."""
    known = set(labels)
    named = []
    for example in examples:
        gold, predicted = ([a] if isinstance(a, str) else a for a in (example.gold, example.predicted))
        if example.right is None and isinstance(gold, list) and isinstance(predicted, list):
            sets = frozenset(gold), frozenset(predicted)
            if sets[0] | sets[1] <= known and len(sets[0]) == len(gold) and len(sets[1]) == len(predicted):
                named.append((example, *sets))
    return named


def find_measured(examples: Sequence[Example]) -> list[tuple[Example, float, float]]:
    """Give the rows whose answers are numbers, as (row, gold, predicted)."""
    return [
        (example, example.gold, example.predicted)
        for example in examples
        if isinstance(example.gold, int | float)
        and isinstance(example.predicted, int | float)
        and is_finite(example.gold, example.predicted)
    ]


def find_mistakes(examples: Sequence[Example], labels: Sequence[str]) -> dict[str, Any] | None:
    """Choose the rows whose answer was most confidently, or furthest, wrong; None without answers."""
    named, measured = find_named(examples, labels), find_measured(examples)
    told = [example for example in examples if example.right is not None]
    if told:
        wrong = [(-1.0 if e.confidence is None else e.confidence, e) for e in told if not e.right]
    elif named:
        wrong = [(_confidence(e, gold, predicted), e) for e, gold, predicted in named if gold != predicted]
    elif measured:
        wrong = [(abs(p - g), e) for e, g, p in measured if p != g]
    else:
        return None
    certain = any(weight >= 0 for weight, _ in wrong)
    title, note = "The most confident mistakes" if certain else "Mistakes", "probability of the error {:.3f}"
    if measured and not told and not named:
        title, note = "The largest errors", "off by {:.4g}"
    wrong.sort(key=lambda pair: -pair[0])
    rows = [(row, note.format(weight) if weight >= 0 else "") for weight, row in wrong[:MOST_MISTAKES]]
    return {"title": title, "count": len(wrong), "rows": rows}


def is_finite(*values: Any) -> bool:
    """Tell whether all values are numbers, and finite ones."""
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)


def _confidence(example: Example, gold: frozenset[str], predicted: frozenset[str]) -> float:
    """Give the probability of the worst wrong decision of a row, -1 where it is not known."""
    chances = {name: chance for name, chance in (example.probabilities or {}).items() if is_finite(chance)}
    added = [chances[name] for name in predicted - gold if name in chances]
    missed = [1 - chances[name] for name in gold - predicted if name in chances]
    return max(added if isinstance(example.predicted, str) else added + missed, default=-1.0)
