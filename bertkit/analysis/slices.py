"""Slices of rows by properties of their texts, and the slices with significantly more errors than the rest."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from bertkit.analysis.outcomes import Outcomes
from bertkit.data.columns import ColumnSpec
from bertkit.errors import shorten
from bertkit.evaluation.differences import Extra, Groups, Units, slice_values
from bertkit.evaluation.stored_predictions import StoredPredictionScorer
from bertkit.metrics.slices import compare_slices
from bertkit.recipe.sections import Row
from bertkit.storage.disk import offload_to_disk

_WORD = re.compile(r"\w+(?:['’]\w+)?")
_NEGATION = re.compile(
    r"\b(no|not|never|none|nobody|nothing|nowhere|neither|nor|without|cannot|hardly|barely|scarcely)\b|n['’]t\b",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")
_MAX_CAPITALIZED = 0.5  # fraction of words; capitals in a title do not mark names
_TOP_BIN = 2  # texts with two or more new words are one slice
_MAX_IDS = 20


@dataclass(frozen=True)
class ComparedSlice:
    """A slice of the units, compared with all other units."""

    by: str
    value: str
    units: int
    rate: float
    rest: float
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    """p value of the test; None if the slice has too few rows or errors to be tested."""
    p_holm: float | None
    is_beyond_chance: bool
    ids: list[str]
    """Ids of the first wrong rows of the slice."""


def find_slices(
    scorer: StoredPredictionScorer,
    rows: Sequence[Row],
    units: Units,
    *,
    known_words: Collection[str] | None = None,
    extra: Extra | None = None,
) -> Groups:
    """Group units by gold label, length, new words, negation, names, numbers and other columns.

    Args:
        scorer: Scorer of the run.
        rows: All rows.
        units: Indices of the rows of each unit.
        known_words: Words of the training rows, in lower case; by default, the words that occur in two texts.
        extra: Name of a column -> its value in each row.
    """
    columns = scorer.task.COLUMNS
    groups = slice_values(scorer, rows, units, extra or {})
    texts = offload_to_disk(" ".join(_join_texts(rows[index], columns) for index in indices) for indices in units)
    new_words = map(len, _find_new_words(texts, known_words))
    name = "new words" if known_words is not None else "words that occur once"
    groups[name] = _group_units(f"{_TOP_BIN} or more" if count >= _TOP_BIN else str(count) for count in new_words)
    checks: dict[str, Callable[[str], object]]
    checks = {"negation": _NEGATION.search, "names": _has_names, "numbers": _DIGIT.search}
    for name, check in checks.items():
        groups[name] = _group_units("yes" if check(text) else "no" for text in texts)
    by_gold = _group_by_gold_lists(rows, units, columns.gold)
    if by_gold:
        groups[columns.gold] = {**groups.get(columns.gold, {}), **by_gold}
    return groups


def compare_groups(outcomes: Outcomes, groups: Groups) -> list[ComparedSlice]:
    """Compare each group of units with all other units, sorted by corrected p value; untested groups come last.

    Args:
        outcomes: Errors of the answers.
        groups: Groups from `find_slices`.
    """
    entries = [(by, value, members) for by, values in groups.items() for value, members in values.items()]
    member_arrays = [np.array(members, dtype=int) for *_, members in entries]
    compared = compare_slices(outcomes.errors, outcomes.decisions, member_arrays)
    slices = []
    for (by, value, members), result in zip(entries, compared, strict=True):
        if result is not None:
            wrong_ids = (outcomes.answers[unit].id for unit in members if outcomes.errors[unit] > 0)
            rates = result.units, result.rate, result.rest, result.difference, result.interval
            tests = result.p, result.p_holm, result.is_beyond_chance
            slices.append(ComparedSlice(by, shorten(str(value), 40), *rates, *tests, list(islice(wrong_ids, _MAX_IDS))))
    return sorted(slices, key=lambda part: (part.p is None, part.p_holm or 0.0, part.p or 0.0))


def collect_words(rows: Sequence[Row], columns: ColumnSpec) -> set[str]:
    """Return the words of rows, in lower case."""
    return {word for row in rows for word in _split_words(_join_texts(row, columns))}


def _join_texts(row: Row, columns: ColumnSpec) -> str:
    values = [
        row[name] for name in (*columns.inputs, *columns.optional, *columns.fallback_columns.values()) if name in row
    ]
    parts = (part for value in values for part in (value if isinstance(value, (list, tuple)) else [value]))
    return " ".join(part for part in parts if isinstance(part, str))


def _split_words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text) if not word.isdigit()]


def _find_new_words(texts: Sequence[str], known_words: Collection[str] | None) -> Iterator[set[str]]:
    """Yield the words of each text that are not known; by default, words that occur in several texts are known."""
    if known_words is None:
        counts = Counter(word for text in texts for word in set(_split_words(text)))
        known_words = {word for word, count in counts.items() if count > 1}
    return (set(_split_words(text)).difference(known_words) for text in texts)


def _has_names(text: str) -> bool:
    """Return whether a text, unless most words are capitalized, has a capitalized word within a sentence."""
    words = _WORD.findall(text)
    capitalized = sum(word[:1].isupper() for word in words)
    # A word other than "I" is within a sentence if a word, a comma or a semicolon precedes it.
    match = re.search(r"[\w,;]\s+(?!I\b)[A-Z][\w]", text)
    return match is not None and capitalized < _MAX_CAPITALIZED * max(len(words), 1)


def _group_units(names: Iterable[str]) -> dict[str, Sequence[int]]:
    """Group units by their names, or return an empty dictionary if all units have the same name."""
    groups: dict[str, array[int]] = {}
    for unit, name in enumerate(names):
        groups.setdefault(name, array("q")).append(unit)
    return dict(sorted(groups.items())) if len(groups) > 1 else {}


def _group_by_gold_lists(rows: Sequence[Row], units: Units, gold: str) -> dict[str, Sequence[int]]:
    """Group units by the items of their gold lists: labels, or types of entities."""
    groups: dict[str, array[int]] = {}
    for unit, indices in enumerate(units):
        value = rows[indices[0]].get(gold)
        if isinstance(value, list):
            # B-PER, I-PER and tags of other schemes, such as E-PER, have the type PER.
            items = {re.sub(r"^[BIESL]-", "", name) for name in value if isinstance(name, str) and name != "O"}
            for name in items or ("none",):
                groups.setdefault(name, array("q")).append(unit)
    return dict(sorted(groups.items()))
