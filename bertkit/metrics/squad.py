"""Read gold answers in their common forms, and score answers as SQuAD does (Rajpurkar et al. 2016, 2018)."""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.errors import DataError
from bertkit.metrics.intervals import Metric, RowScores, to_percent
from bertkit.recipe.sections import Row

# Sums of F1 that differ by less are equal.
_ROUNDING = 1e-9
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Return an answer in lower case without punctuation, articles and repeated spaces (Rajpurkar et al. 2016).

    >>> normalize("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def compare_answers(gold: str, predicted: str, *, no_answer: bool) -> tuple[float, float]:
    """Compute exact match (0 or 1) and the F1 of the words of two answers, after both are normalized.

    Args:
        gold: Gold answer.
        predicted: Predicted answer.
        no_answer: Whether empty text means no answer (SQuAD 2.0): both scores are 1 if both are empty, and 0 if one is.
    """
    gold_words, predicted_words = normalize(gold).split(), normalize(predicted).split()
    exact = float(gold_words == predicted_words)
    if no_answer and not (gold_words and predicted_words):
        return exact, exact
    common = sum((Counter(gold_words) & Counter(predicted_words)).values())
    return exact, 2 * common / (len(gold_words) + len(predicted_words)) if common else 0.0


def score_question(golds: Sequence[str], predicted: str, *, no_answer: bool) -> tuple[float, float]:
    """Compute exact match and F1 of a question, each with the gold answer that scores highest.

    With `no_answer`, gold answers that consist of punctuation and articles are ignored; without any other, the gold
    answer is empty (as in `evaluate-v2.0.py`).
    """
    if no_answer:
        golds = [gold for gold in golds if normalize(gold)] or [""]
    pairs = [compare_answers(gold, predicted, no_answer=no_answer) for gold in golds]
    return max(exact for exact, _ in pairs), max(f1 for _, f1 in pairs)


def score_answers(golds: Sequence[Sequence[str]], texts: Sequence[str], *, no_answer: bool) -> np.ndarray:
    """Compute exact match and F1 of each question. Shape: (2, questions)."""
    pairs = zip(golds, texts, strict=True)
    return np.array([score_question(gold, text, no_answer=no_answer) for gold, text in pairs]).reshape(-1, 2).T


def find_best_threshold(
    scores: np.ndarray, empty: np.ndarray, null_odds: np.ndarray, has_answer: np.ndarray
) -> tuple[float, float]:
    """Return the best mean score, and the threshold on `null_odds` that has it (as in `evaluate-v2.0.py`).

    No answer is predicted for questions whose odds are above the threshold. Candidates are all odds and, to answer no
    question, a value below all odds. For the latter, the official `find_best_thresh` takes 0, because its odds are
    probabilities.

    Args:
        scores: Score of each best span, from 0 to 1. Shape: (questions,), as for all arguments.
        empty: Whether the best span is empty once normalized, so that it predicts no answer at any threshold.
        null_odds: Score of no answer minus the score of the best span.
        has_answer: Whether the question has an answer.

    Returns:
        The best mean score, from 0 to 1, and the lowest threshold that reaches it.

    >>> scores, has_answer = np.array([1.0, 1.0, 0.0, 0.0]), np.array([True, True, False, True])
    >>> find_best_threshold(scores, np.zeros(4, bool), np.array([-5.0, -2.0, -1.0, 3.0]), has_answer)
    (0.75, -2.0)
    """
    # The gain of a question is its score if it is answered, minus its score with no answer. The cumulative sum of the
    # gains, sorted by odds, is the total gain at each threshold, so one sort replaces scoring at each threshold.
    # In the example, the gains are [1, 1, -1, 0]: the third question has no answer, so its point would be lost. The
    # total gains are [1, 2, 1, 1], so the first two questions are answered, and (1 + 2) / 4 is 0.75.
    gains = np.where(has_answer, scores, np.where(empty, 0.0, -1.0))
    order = np.argsort(null_odds, kind="stable")
    odds, total_gains = null_odds[order], np.cumsum(gains[order])
    # Questions with equal odds are answered together.
    total_gains[:-1][odds[:-1] == odds[1:]] = -np.inf
    # Sum of the scores if no question is answered.
    null_total, best_gain = float((~has_answer).sum()), float(total_gains.max())
    if best_gain <= _ROUNDING:
        return null_total / len(scores), float(odds[0]) - 1
    # Sums of F1 that should be equal can differ in the last digit; without a tolerance, the threshold would be random.
    return (null_total + best_gain) / len(scores), float(odds[np.argmax(total_gains >= best_gain - _ROUNDING)])


def _declare_mean(column: str, has_answer: bool | None = None) -> Metric:
    """Declare the mean of an array in percent, over all questions, or only those with (or without) an answer."""

    def select(row_scores: RowScores) -> np.ndarray:
        values = row_scores[column]
        return values if has_answer is None else values[row_scores["has_answer"] == has_answer]

    def compute(row_scores: RowScores) -> float:
        values = select(row_scores)
        return float(100 * values.mean()) if len(values) else math.nan

    def count(row_scores: RowScores) -> tuple[int, int] | None:
        # The mean is a ratio of counts if all scores are 0 or 1: always for exact match, sometimes for F1.
        values = select(row_scores)
        is_binary = len(values) and np.isin(values, (0, 1)).all()
        return (int(values.sum()), len(values)) if is_binary else None

    undefined = "no question has an answer" if has_answer else "every question has an answer"
    return Metric(compute, count, to_percent, undefined=undefined)


def _find_best(column: str, row_scores: RowScores) -> tuple[float, float]:
    """Return the best mean of a score of the best spans over all thresholds, and the threshold that reaches it."""
    columns = (row_scores[name] for name in (column, "span_empty", "null_odds", "has_answer"))
    return find_best_threshold(*columns)


METRICS: Mapping[str, Metric] = {
    "exact_match": _declare_mean("exact"),
    "f1": _declare_mean("f1"),
    "HasAns_exact": _declare_mean("exact", True),
    "HasAns_f1": _declare_mean("f1", True),
    "NoAns_exact": _declare_mean("exact", False),
    "NoAns_f1": _declare_mean("f1", False),
    "best_exact": Metric(lambda row_scores: 100 * _find_best("span_exact", row_scores)[0], to_score=to_percent),
    "best_exact_thresh": Metric(lambda row_scores: _find_best("span_exact", row_scores)[1], is_score=False),
    "best_f1": Metric(lambda row_scores: 100 * _find_best("span_f1", row_scores)[0], to_score=to_percent),
    "best_f1_thresh": Metric(lambda row_scores: _find_best("span_f1", row_scores)[1], is_score=False),
}
"""Metrics of the official evaluation in percent, and its thresholds.

They are computed from ``exact`` and ``f1`` from 0 to 1, ``has_answer``, ``null_odds`` and, for the best spans,
``span_exact``, ``span_f1`` and ``span_empty``. Shape: (questions,). ``HasAns_*`` and ``NoAns_*`` are NaN if no question
has an answer, or each question has one.
"""


def question_prefix(row: Row) -> str:
    """Return the prefix of a message that names a question by its id, or an empty text if it has no id."""
    return f"question {row['id']}: " if "id" in row else ""


def read_answers(row: Row) -> tuple[list[str], list[int]]:
    """Return the text of each answer, and the index of its first character in the context.

    Answers can be in the form of SQuAD, ``{"text": [...], "answer_start": [...]}``, a list of ``{"text",
    "answer_start"}``, a pair (text, start), JSON of one of these, or plain text that occurs once in the ``context``.
    Whitespace at both ends of an answer is dropped.

    Raises:
        DataError: If the answers have another form, or an answer is not at its ``answer_start``; the message contains
            the ``id`` of the question.
    """
    value = row["answers"]
    # Each statement rewrites one form, until the value has the form of SQuAD. A text in brackets is JSON, unless it
    # occurs in the context, which makes it an answer.
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[") and value not in row["context"]:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            message = f"{question_prefix(row)}the answers are not valid JSON"
            raise DataError(message, "correct them", column="answers") from None
    if isinstance(value, str):
        value = {"text": [value], "answer_start": [_find_start(row, value)]} if value.strip() else []
    if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str):
        value = {"text": value[:1], "answer_start": value[1:]} if value[0].strip() else []
    if isinstance(value, (list, tuple)) and all(isinstance(answer, dict) for answer in value):
        value = {key: [answer.get(key) for answer in value] for key in ("text", "answer_start")}
    try:
        texts, starts = _as_list(value["text"]), _as_list(value["answer_start"])
        is_integer = all(not isinstance(start, float) or start == int(start) for start in starts)
        if len(texts) != len(starts) or not is_integer or not all(isinstance(text, str) for text in texts):
            raise ValueError
        starts = [int(start) for start in starts]
    except (TypeError, ValueError, KeyError, OverflowError):
        message = f"{question_prefix(row)}the answers are not in the form of SQuAD"
        raise DataError(message, 'write {"text": ["..."], "answer_start": [17]}', column="answers") from None
    starts = [_check_start(row, text, start) for text, start in zip(texts, starts, strict=True)]
    return [text.strip() for text in texts], starts


def _check_start(row: Row, text: str, start: int) -> int:
    """Check that an answer starts at `start`, and return the index of its first visible character."""
    if not text.strip():
        raise DataError(f"{question_prefix(row)}an answer has no text", "leave it out", column="answers")
    if start < 0 or not row["context"].startswith(text, start):
        message = f"{question_prefix(row)}{describe_mismatch(row['context'], text, start)}"
        raise DataError(message, "correct it", column="answers")
    return start + len(text) - len(text.lstrip())


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, int)) else list(value)


def _find_start(row: Row, text: str) -> int:
    """Return the start of an answer without ``answer_start``, which must occur once in the context."""
    count = row["context"].count(text)
    if count == 1:
        return int(row["context"].index(text))
    message = f"the answer {text[:60]!r} occurs {count} times in the context"
    remedy = "add its answer_start"
    if not count:
        message, remedy = f"the answer {text[:60]!r} is not in the context", "copy it from there"
    raise DataError(question_prefix(row) + message, remedy, column="answers")


def describe_mismatch(context: str, text: str, start: int) -> str:
    """Describe the text at a wrong start of an answer, and how the start was counted, or the nearest correct start."""
    actual = context[max(start, 0) : max(start, 0) + len(text)]
    message = f"the answer {text[:60]!r} is not at {start} ({actual[:60]!r} is)"
    # A usual mistake is to count bytes of UTF-8 (Rust, Go) or units of UTF-16 (Java, JavaScript). After the first
    # character of several units, such starts are too high.
    as_bytes = text.encode(errors="surrogatepass")
    if start >= 0 and context.encode(errors="surrogatepass")[start:].startswith(as_bytes):
        return f"{message}; answer_start counts bytes, not characters"
    wide = "utf-16-le", "surrogatepass"
    if start >= 0 and context.encode(*wide)[2 * start :].startswith(text.encode(*wide)):
        return f"{message}; answer_start counts UTF-16 units, not characters"
    starts = [index for index in range(len(context)) if context.startswith(text, index)]
    if not starts:
        return f"{message}, nor anywhere else in the context"
    return f"{message}; the nearest is at {min(starts, key=lambda index: abs(index - start))}"
