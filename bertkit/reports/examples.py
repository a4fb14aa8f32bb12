"""Evaluated rows, and their most informative mistakes: the most confident ones or the largest errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.metrics import LabeledSpan
from bertkit.reports.text import is_finite

AnswerValue = str | float | list[str]
"""A label name or other text, a number, or the label names of a multi-label row."""

_AROUND = 120  # characters on each side of a span that a page shows


@dataclass(frozen=True)
class Example:
    """One evaluated row: its columns as (name, text), the gold answer and the prediction."""

    id: str
    text: list[tuple[str, str]]
    gold: AnswerValue
    predicted: AnswerValue
    probabilities: dict[str, float] | None = None
    correct: bool | None = None
    """Whether the prediction counts as correct, if comparing it with the gold answer is not enough."""
    confidence: float | None = None
    highlighted: tuple[str, list[LabeledSpan], list[LabeledSpan]] | None = None
    """A text with its gold and its predicted spans, if these are the answers."""


def make_example(index: int, row: Mapping[str, Any], gold: str, prediction: Mapping[str, Any], answer: Any) -> Example:
    """Return a row as an example, with the family's wording of its answers if it has any (`Answer`)."""
    id = str(row.get("id", index))
    if answer is None:
        return Example(id, [], row.get(gold, ""), prediction["prediction"], prediction.get("probabilities"))
    return Example(id, [], **vars(answer))


def cut_spans(text: str, spans: Iterable[LabeledSpan], other_spans: Collection[LabeledSpan]) -> list[tuple[str, ...]]:
    """Split a text at its spans, and shorten long texts between them; a span that is also in `other_spans` is good.

    Returns:
        Parts as (text, label, ``good`` or ``bad``, characters); the last three are empty for text between spans.

    >>> cut_spans("Ada met", [(0, 3, "PER")], [(0, 3, "LOC")])[:3]
    [('', '', '', ''), ('Ada', 'PER', 'bad', '0:3'), (' met', '', '', '')]
    """
    parts, last = list[tuple[str, ...]](), 0
    for start, end, label in [*sorted(spans), (len(text), len(text), "")]:
        between, last = text[last:start], end
        short = f"{between[:_AROUND]} … {between[-_AROUND:]}" if len(between) > 3 * _AROUND else between
        # A span counts only if both ends and the label match, as in the F1 over entities.
        verdict = "good" if (start, end, label) in other_spans else "bad"
        parts += [(short, "", "", ""), (text[start:end], label, verdict, f"{start}:{end}")]
    return parts


LabelAnswer = tuple[Example, frozenset[str], frozenset[str]]
"""A row, its gold names and its predicted names."""

NumberAnswer = tuple[Example, float, float]
"""A row, its gold number and its predicted number."""


def find_labeled(examples: Sequence[Example], labels: Sequence[str]) -> list[LabelAnswer]:
    """Return the rows whose answers are label names."""
    label_names = set(labels)
    answers = []
    for example in examples:
        gold, predicted = ([value] if isinstance(value, str) else value for value in (example.gold, example.predicted))
        if example.correct is None and isinstance(gold, list) and isinstance(predicted, list):
            sets = frozenset(gold), frozenset(predicted)
            # A list that repeats a name is a sequence of tags, and not a set of labels.
            if sets[0] | sets[1] <= label_names and len(sets[0]) == len(gold) and len(sets[1]) == len(predicted):
                answers.append((example, *sets))
    return answers


def find_numeric(examples: Sequence[Example]) -> list[NumberAnswer]:
    """Return the rows whose answers are numbers."""
    return [
        (example, example.gold, example.predicted)
        for example in examples
        if isinstance(example.gold, int | float)
        and isinstance(example.predicted, int | float)
        and is_finite(example.gold, example.predicted)
    ]


def find_mistakes(
    examples: Sequence[Example], named: Sequence[LabelAnswer], measured: Sequence[NumberAnswer]
) -> list[tuple[Example, str]] | None:
    """Return the wrong rows with the confidence or the error of each, the largest first.

    None means that no answers can be compared.
    """
    answered, note = [example for example in examples if example.correct is not None], "confidence {:.3f}"
    if answered:
        wrong = [(-1.0 if e.confidence is None else e.confidence, e) for e in answered if not e.correct]
    elif named:
        wrong = [(get_confidence(e, gold, predicted), e) for e, gold, predicted in named if gold != predicted]
    elif measured:
        wrong, note = [(abs(p - g), e) for e, g, p in measured if p != g], "error {:.4g}"
    else:
        return None
    wrong.sort(key=lambda pair: -pair[0])
    return [(row, note.format(weight) if weight >= 0 else "") for weight, row in wrong]


def get_confidence(example: Example, gold: frozenset[str], predicted: frozenset[str]) -> float:
    """Return the probability of a row's most confident wrong decision, -1 if it has no probabilities."""
    probabilities = {name: value for name, value in (example.probabilities or {}).items() if is_finite(value)}
    # A label that was wrongly added is as wrong as its probability is high. A label that was missed is as wrong as
    # its probability is low; with one label per row, that is the same mistake and counts once.
    added = [probabilities[name] for name in predicted - gold if name in probabilities]
    missed = [1 - probabilities[name] for name in gold - predicted if name in probabilities]
    return max(added if isinstance(example.predicted, str) else added + missed, default=-1.0)
