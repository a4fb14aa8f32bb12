"""Gold answers: read from the forms people have, and scored as SQuAD does (Rajpurkar et al. 2016, 2018)."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertkit.errors import DataError
from bertkit.recipe import Row

Values = np.ndarray[Any, Any]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Give an answer in lower case without punctuation, articles and superfluous blanks (Rajpurkar et al. 2016).

    >>> normalize("The  Eiffel-Tower!")
    'eiffeltower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_and_f1(gold: str, predicted: str, *, no_answer: bool) -> tuple[float, float]:
    """Give whether two answers are the same once normalized, and the F1 of their words.

    Args:
        gold: the right answer.
        predicted: the model's.
        no_answer: whether empty text stands for `no answer` (SQuAD 2.0); then it is right where both sides are empty.
    """
    one, other = normalize(gold).split(), normalize(predicted).split()
    exact = float(one == other)
    if no_answer and not (one and other):
        return exact, exact
    common = sum((Counter(one) & Counter(other)).values())
    return exact, 2 * common / (len(one) + len(other)) if common else 0.0


def score_answer(golds: Sequence[str], predicted: str, *, no_answer: bool) -> tuple[float, float]:
    """Give exact match and F1, each with the gold answer that suits it best.

    With `no_answer`, gold answers of nothing but punctuation and articles do not count, and a question without any
    has the gold answer "" (`evaluate-v2.0.py`).
    """
    wanted: Sequence[str] = golds
    if no_answer:
        wanted = [gold for gold in golds if normalize(gold)] or [""]
    pairs = [exact_and_f1(gold, predicted, no_answer=no_answer) for gold in wanted]
    return max(exact for exact, _ in pairs), max(f1 for _, f1 in pairs)


def best_threshold(scores: Values, empty: Values, null_odds: Values, has_answer: Values) -> tuple[float, float]:
    """Find the threshold above which `null_odds` had best mean "no answer" (`evaluate-v2.0.py`, find_best_thresh).

    Args:
        scores: what the predictions score, in [0, 1], shape (questions,).
        empty: whether a prediction says "no answer" anyway.
        null_odds: how much more the model believes in no answer.
        has_answer: whether there is an answer.

    Returns:
        the best mean score in [0, 1], and the threshold.
    """
    gains = np.where(has_answer, scores, np.where(empty, 0.0, -1.0))
    order = np.argsort(null_odds, kind="stable")
    silent = float((~has_answer).sum())  # right by never answering
    totals = silent + np.cumsum(gains[order])
    best = int(totals.argmax())
    if totals[best] <= silent:
        return silent / len(scores), 0.0
    return float(totals[best]) / len(scores), float(null_odds[order][best])


def name(row: Row) -> str:
    """Name a question by its id, for a message; empty where it has none."""
    return f"question {row['id']}: " if "id" in row else ""


def read_answers(row: Row) -> tuple[list[str], list[int]]:
    """Give the answers' texts and first characters, whichever way they are written.

    As in SQuAD, as a list of ``{"text", "answer_start"}``, as (text, start), as JSON of one of these, or as plain text
    that occurs once in the ``context``. Blanks at their ends are no part of them.

    Raises:
        DataError: none of these, or an answer that is not where it is said to be; the question is named by its ``id``.
    """
    value = row["answers"]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[") and value not in row["context"]:
        try:
            value = json.loads(value)
        except ValueError:
            raise DataError(f"{name(row)}answers that are not JSON", "correct them", column="answers") from None
    if isinstance(value, str):
        value = {"text": [value], "answer_start": [_only_place(row, value)]} if value.strip() else []
    if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str):
        value = {"text": value[:1], "answer_start": value[1:]} if value[0].strip() else []
    if isinstance(value, (list, tuple)) and all(isinstance(each, dict) for each in value):
        value = {key: [each.get(key) for each in value] for key in ("text", "answer_start")}
    try:
        texts, starts = _listed(value["text"]), [_whole(start) for start in _listed(value["answer_start"])]
        if len(texts) != len(starts) or not all(isinstance(text, str) for text in texts):
            raise ValueError
    except (TypeError, ValueError, KeyError, OverflowError):
        what = f"{name(row)}answers that are not as in SQuAD"
        remedy = 'write {"text": ["..."], "answer_start": [17]}'
        raise DataError(what, remedy, column="answers") from None
    places = [_check_place(row, text, start) for text, start in zip(texts, starts, strict=True)]
    return [text.strip() for text in texts], places


def _check_place(row: Row, text: str, start: int) -> int:
    """Give the place of an answer's first visible character, if the answer is there."""
    if not text.strip():
        raise DataError(f"{name(row)}an answer without text", "leave it out", column="answers")
    if start < 0 or not row["context"].startswith(text, start):
        what = f"{name(row)}{misplaced(row['context'], text, start)}"
        raise DataError(what, "correct it", column="answers")
    return start + len(text) - len(text.lstrip())


def _whole(value: Any) -> int:
    number = int(value)
    if isinstance(value, float) and value != number:
        raise ValueError
    return number


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, (str, int)) else list(value)


def _only_place(row: Row, text: str) -> int:
    """Find an answer that is given without its place."""
    count = row["context"].count(text)
    if count == 1:
        return int(row["context"].index(text))
    what = f"the answer {text[:60]!r} is {f'{count} times' if count else 'not'} in the context"
    raise DataError(name(row) + what, "give its answer_start" if count else "copy it from there", column="answers")


def misplaced(context: str, text: str, start: int) -> str:
    """Say what is at an answer's place instead, where the answer is, and whether its place was counted otherwise."""
    there = context[max(start, 0) : max(start, 0) + len(text)]
    what = f"the answer {text[:60]!r} is not at {start} ({there[:60]!r} is)"
    as_bytes = text.encode(errors="surrogatepass")
    if start >= 0 and context.encode(errors="surrogatepass")[start:].startswith(as_bytes):
        return f"{what}; answer_start counts bytes, not characters"
    wide = "utf-16-le", "surrogatepass"
    if start >= 0 and context.encode(*wide)[2 * start :].startswith(text.encode(*wide)):
        return f"{what}; answer_start counts UTF-16 units, not characters"
    places = [place for place in range(len(context)) if context.startswith(text, place)]
    if not places:
        return f"{what}, nor anywhere else in the context"
    return f"{what}; the nearest is at {min(places, key=lambda place: abs(place - start))}"
