"""The mean of one model's scores in several languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertkit.evaluation.scoring import Result
from bertkit.metrics.intervals import Interval, combine_intervals


@dataclass(frozen=True)
class LanguageMean:
    """The mean score over languages, each with the same weight."""

    metric: str
    splits: list[str]
    """The splits whose scores are averaged: one of each language."""
    score: float | None
    """Missing (None) if there is only one language, or if a score is undefined."""
    interval: Interval
    """For rows of one language that are independent of those of another."""


def average_languages(results: Mapping[str, Sequence[Result]], metric: str) -> list[LanguageMean]:
    """Average a metric over languages: once if each language has one split, else once per split."""
    splits = list(dict.fromkeys(result.split for group in results.values() for result in group))
    groups = [splits] if all(len(group) == 1 for group in results.values()) else [[split] for split in splits]
    return [
        _average([result for group in results.values() for result in group if result.split in names], metric, names)
        for names in groups
    ]


def _average(results: Sequence[Result], metric: str, splits: list[str]) -> LanguageMean:
    share = 1 / len(results)
    scores = [(result.scores[metric], result.intervals.get(metric)) for result in results]
    terms = [(share, score, ends) for score, ends in scores if score is not None]
    if len(terms) < max(2, len(results)):
        return LanguageMean(metric, splits, None, None)
    return LanguageMean(metric, splits, sum(score for _, score, _ in terms) * share, combine_intervals(terms))
