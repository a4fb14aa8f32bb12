"""Slices of rows by what their texts are like, and the slices that a run is worse on than chance would have it."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from bertkit.data.columns import Columns
from bertkit.errors import shorten
from bertkit.evaluation.differences import Extra, Groups, Units, slice_values
from bertkit.evaluation.stored import Scorer
from bertkit.insight.outcomes import Outcomes
from bertkit.metrics.slices import compare_slices
from bertkit.recipe.sections import Row
from bertkit.storage.disk import spool

_WORD = re.compile(r"\w+(?:['’]\w+)?")
_NEGATION = re.compile(
    r"\b(no|not|never|none|nobody|nothing|nowhere|neither|nor|without|cannot|hardly|barely|scarcely)\b|n['’]t\b",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")
# share of words with a capital from which on a text is a title, and capitals show no names
_CASED = 0.5
_MANY_NEW = 2

_OF_DIFFERENCE = ("units", "rate", "rest", "difference", "interval", "p", "p_holm", "is_beyond_chance")


@dataclass(frozen=True)
class ComparedSlice:
    """A slice of the units with how it compares with the rest."""

    by: str
    value: str
    units: int
    rate: float
    rest: float
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    """None where so few rows, or errors, cannot differ beyond chance: the slice is not tested."""
    p_holm: float | None
    is_beyond_chance: bool
    ids: list[str]
    """Ids of the first few wrong rows in it."""


def find_slices(
    scorer: Scorer,
    rows: Sequence[Row],
    units: Units,
    *,
    known_words: Collection[str] | None = None,
    extra: Extra | None = None,
) -> Groups:
    """Group units by gold label, length, new words, negation, names, numbers and other columns.

    Args:
        scorer: of the run.
        rows: all of them.
        units: the numbers of the rows of each unit.
        known_words: those of the training rows, in lower case; without them, a word is new that occurs once.
        extra: name of a column -> its value in each row.
    """
    columns = scorer.task.COLUMNS
    groups = slice_values(scorer, rows, units, extra or {})
    texts = spool(" ".join(_text(rows[number], columns) for number in numbers) for numbers in units)
    name = "new words" if known_words is not None else "words that occur once"
    counts = map(len, _new_words(texts, known_words))
    groups[name] = _group_units(counts, lambda count: f"{_MANY_NEW} or more" if count >= _MANY_NEW else str(count))
    groups["negation"] = _group_units(texts, lambda text: _yes(_NEGATION.search(text)))
    groups["names"] = _group_units(texts, lambda text: _yes(_has_names(text)))
    groups["numbers"] = _group_units(texts, lambda text: _yes(_DIGIT.search(text)))
    for value, members in _by_gold_lists(rows, units, columns.gold).items():
        groups.setdefault(columns.gold, {})[value] = members
    return groups


def compare_groups(outcomes: Outcomes, groups: Groups) -> list[ComparedSlice]:
    """Compare each group of units with the rest; the smallest corrected p comes first, what is not tested last.

    Args:
        outcomes: how wrong the answers are.
        groups: of `find_slices`.
    """
    named = [(by, value, members) for by, values in groups.items() for value, members in values.items()]
    compared = compare_slices(
        outcomes.errors,
        outcomes.decisions,
        [np.array(members, dtype=int) for *_, members in named],
    )
    tested = []
    for (by, value, members), found in zip(named, compared, strict=True):
        if found is not None:
            wrong = (outcomes.answers[unit].id for unit in members if outcomes.errors[unit] > 0)
            facts = {name: getattr(found, name) for name in _OF_DIFFERENCE}
            tested.append(ComparedSlice(by=by, value=shorten(str(value), 40), **facts, ids=list(islice(wrong, 20))))
    return sorted(tested, key=lambda one: (one.p is None, one.p_holm or 0.0, one.p or 0.0))


def words_of(rows: Sequence[Row], columns: Columns) -> set[str]:
    """Return the words of rows, in lower case."""
    return {word for row in rows for word in _words(_text(row, columns))}


def _text(row: Row, columns: Columns) -> str:
    values = [row[name] for name in (*columns.given, *columns.optional, *columns.text_instead.values()) if name in row]
    parts = (part for value in values for part in (value if isinstance(value, (list, tuple)) else [value]))
    return " ".join(part for part in parts if isinstance(part, str))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text) if not word.isdigit()]


def _new_words(texts: Sequence[str], known: Iterable[str] | None) -> Iterator[set[str]]:
    """Yield the words of each text that are not known; without known ones, those that no other text has."""
    if known is None:
        counts = Counter(word for text in texts for word in set(_words(text)))
        known = (word for word, count in counts.items() if count > 1)
    known_words = frozenset(known)
    return ({*_words(text)} - known_words for text in texts)


def _has_names(text: str) -> bool:
    """Tell whether a word that begins no sentence has a capital letter, in a text that is not written in capitals."""
    words = _WORD.findall(text)
    capital = sum(word[:1].isupper() for word in words)
    inside = re.search(r"[\w,;]\s+(?!I\b)[A-Z][\w]", text)
    return inside is not None and capital < _CASED * max(len(words), 1)


def _yes(found: object) -> str:
    return "yes" if found else "no"


def _group_units(values: Iterable[Any], name: Callable[[Any], str]) -> dict[str, Sequence[int]]:
    """Group units by a name; where all have the same, there is nothing to compare."""
    groups: dict[str, array[int]] = {}
    for unit, value in enumerate(values):
        groups.setdefault(name(value), array("q")).append(unit)
    return dict(sorted(groups.items())) if len(groups) > 1 else {}


def _by_gold_lists(rows: Sequence[Row], units: Units, gold: str) -> dict[str, Sequence[int]]:
    """Group units by what their gold lists hold: labels, or types of entities."""
    groups: dict[str, array[int]] = {}
    for unit, numbers in enumerate(units):
        value = rows[numbers[0]].get(gold)
        if isinstance(value, list):
            held = {re.sub(r"^[BIESL]-", "", name) for name in value if isinstance(name, str) and name != "O"}
            for name in held or ("none",):
                groups.setdefault(name, array("q")).append(unit)
    return dict(sorted(groups.items()))
