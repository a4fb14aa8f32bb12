"""Evaluated rows as a page shows them, and their mistakes, sorted by confidence or by error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.metrics import LabeledSpan
from bertkit.reports.text import is_finite

AnswerValue = str | float | list[str]
"""A label name or other text, a number, or the label names of a multi-label row."""

_CONTEXT = 120  # characters before and after a span


@dataclass(frozen=True)
class Example:
    """One evaluated row with its gold answer and its prediction."""

    id: str
    text: list[tuple[str, str]]
    """Columns of the row as (name, text)."""
    gold: AnswerValue
    predicted: AnswerValue
    probabilities: dict[str, float] | None = None
    correct: bool | None = None
    """Whether the prediction counts as correct, or None if a comparison with the gold answer decides."""
    confidence: float | None = None
    highlighted: tuple[str, list[LabeledSpan], list[LabeledSpan]] | None = None
    """A text with its gold and its predicted spans, if these are the answers."""


def make_example(index: int, row: Mapping[str, Any], gold: str, prediction: Mapping[str, Any], answer: Any) -> Example:
    """Return a row as an example, with the task's texts for its answers if there are any (`Answer`)."""
    id = str(row.get("id", index))
    if answer is None:
        return Example(id, [], row.get(gold, ""), prediction["prediction"], prediction.get("probabilities"))
    return Example(id, [], **vars(answer))


def cut_spans(text: str, spans: Iterable[LabeledSpan], other_spans: Collection[LabeledSpan]) -> list[tuple[str, ...]]:
    """Split a text at its spans, and shorten long texts between spans; a span that is also in `other_spans` is good.

    Returns:
        Parts as (text, label, ``good`` or ``bad``, range of characters). The text between spans has only its text.

    >>> cut_spans("Ada met", [(0, 3, "PER")], [(0, 3, "LOC")])[:3]
    [('', '', '', ''), ('Ada', 'PER', 'bad', '0:3'), (' met', '', '', '')]
    """
    parts, previous_end = list[tuple[str, ...]](), 0
    for start, end, label in [*sorted(spans), (len(text), len(text), "")]:
        between, previous_end = text[previous_end:start], end
        between = f"{between[:_CONTEXT]} … {between[-_CONTEXT:]}" if len(between) > 3 * _CONTEXT else between
        # A span is good only if both ends and the label match, as for the F1 over entities.
        verdict = "good" if (start, end, label) in other_spans else "bad"
        parts += [(between, "", "", ""), (text[start:end], label, verdict, f"{start}:{end}")]
    return parts


LabelAnswer = tuple[Example, frozenset[str], frozenset[str]]
"""A row, its gold labels and its predicted labels."""

NumberAnswer = tuple[Example, float, float]
"""A row, its gold number and its predicted number."""


def find_labeled(examples: Sequence[Example], labels: Sequence[str]) -> list[LabelAnswer]:
    """Return the rows whose answers are label names."""
    label_names = set(labels)
    answers = []
    for example in examples:
        gold, predicted = ([value] if isinstance(value, str) else value for value in (example.gold, example.predicted))
        if example.correct is None and isinstance(gold, list) and isinstance(predicted, list):
            gold_set, predicted_set = frozenset(gold), frozenset(predicted)
            # A list that repeats a name is a sequence of tags, not a set of labels.
            is_unique = len(gold_set) == len(gold) and len(predicted_set) == len(predicted)
            if is_unique and gold_set | predicted_set <= label_names:
                answers.append((example, gold_set, predicted_set))
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
    examples: Sequence[Example], label_answers: Sequence[LabelAnswer], number_answers: Sequence[NumberAnswer]
) -> list[tuple[Example, str]] | None:
    """Return the wrong rows with their confidence or error as text, the largest first.

    Returns:
        Pairs of a row and its text, or None if no answers can be compared.
    """
    judged_examples, note = [example for example in examples if example.correct is not None], "confidence {:.3f}"
    if judged_examples:
        mistakes = [(-1.0 if e.confidence is None else e.confidence, e) for e in judged_examples if not e.correct]
    elif label_answers:
        mistakes = [(get_confidence(e, gold, pred), e) for e, gold, pred in label_answers if gold != pred]
    elif number_answers:
        mistakes, note = [(abs(pred - gold), e) for e, gold, pred in number_answers if pred != gold], "error {:.4g}"
    else:
        return None
    mistakes.sort(key=lambda pair: -pair[0])
    return [(example, note.format(value) if value >= 0 else "") for value, example in mistakes]


def get_confidence(example: Example, gold: frozenset[str], predicted: frozenset[str]) -> float:
    """Return the confidence in a row's most confident wrong decision, or -1 if the row has no probabilities."""
    probabilities = {name: value for name, value in (example.probabilities or {}).items() if is_finite(value)}
    # The confidence in a wrong label is its probability, and in a missed label, 1 minus its probability. With one label
    # per row, both are the same mistake, which counts once.
    confidences = [probabilities[name] for name in predicted - gold if name in probabilities]
    if not isinstance(example.predicted, str):
        confidences += [1 - probabilities[name] for name in gold - predicted if name in probabilities]
    return max(confidences, default=-1.0)
