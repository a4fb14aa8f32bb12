"""The scores of one model in several languages side by side, and how far each is from the language of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.evaluation.scoring import Result
from bertkit.metrics.intervals import Interval, combine_intervals


@dataclass(frozen=True)
class LanguageScore:
    """The score of the rows of one language."""

    language: str
    split: str
    rows: int
    score: float | None
    interval: Interval
    baseline: float | None
    """The score of the strongest baseline; None where there is none."""
    gap: float | None = None
    """The score minus that of the reference; None for the reference itself, and where one is undefined."""
    gap_interval: Interval = None
    """For rows that are independent of those of the reference."""


@dataclass(frozen=True)
class LanguageMean:
    """The mean score of several languages, each with the same weight."""

    languages: list[str]
    score: float
    interval: Interval
    """For rows of one language that are independent of those of another."""


@dataclass(frozen=True)
class LanguageTable:
    """One split of each language, scored by the metric that chooses the checkpoint."""

    metric: str
    scores: list[LanguageScore]
    means: list[LanguageMean]
    """Of all languages, and of those that are not the reference; none where a score is undefined."""


@dataclass(frozen=True)
class LanguageScores:
    """What a checkpoint scored in several languages."""

    recipe: str
    model: str
    reference: str
    """The language that gaps are measured from."""
    is_recorded: bool
    """Whether the run's record names the reference as the language of training; else it is the first one asked for."""
    results: dict[str, list[Result]]
    """Language -> a result for each split."""
    tables: list[LanguageTable]


def find_reference(record: Mapping[str, Any], languages: Sequence[str]) -> tuple[str, bool]:
    """Return the language that gaps are measured from, and whether it is that of training, which the record names."""
    trained = record.get("identity", {}).get("recipe", {}).get("data", {}).get("language")
    return (str(trained), True) if trained else (languages[0], False)


def tabulate_languages(results: Mapping[str, Sequence[Result]], metric: str, reference: str) -> list[LanguageTable]:
    """Put the languages beside each other: in one table if each has one split, else in a table per split."""
    if all(len(of_language) == 1 for of_language in results.values()):
        return [_tabulate({language: of[0] for language, of in results.items()}, metric, reference)]
    splits = dict.fromkeys(result.split for of_language in results.values() for result in of_language)
    by_split = (
        {language: result for language, of in results.items() for result in of if result.split == split}
        for split in splits
    )
    return [_tabulate(of_split, metric, reference) for of_split in by_split]


def _tabulate(results: Mapping[str, Result], metric: str, reference: str) -> LanguageTable:
    scores = [_score(language, result, metric, results.get(reference)) for language, result in results.items()]
    others = [score for score in scores if score.language != reference]
    groups = [scores, others] if len(others) < len(scores) else [scores]
    return LanguageTable(metric, scores, [mean for group in groups if (mean := _mean(group))])


def _score(language: str, result: Result, metric: str, reference: Result | None) -> LanguageScore:
    score, interval = result.scores[metric], result.intervals.get(metric)
    gap, gap_interval = None, None
    if reference is not None and reference is not result:
        base = reference.scores[metric]
        if score is not None and base is not None:
            gap = score - base
            gap_interval = combine_intervals([(1, score, interval), (-1, base, reference.intervals.get(metric))])
    baseline = result.baseline.get(metric)
    return LanguageScore(language, result.split, result.rows, score, interval, baseline, gap, gap_interval)


def _mean(scores: Sequence[LanguageScore]) -> LanguageMean | None:
    """Return the mean of at least two scores; None if one is undefined."""
    known = [(score.score, score.interval) for score in scores if score.score is not None]
    if len(known) < max(2, len(scores)):
        return None
    share = 1 / len(known)
    interval = combine_intervals([(share, score, ends) for score, ends in known])
    return LanguageMean([score.language for score in scores], sum(score for score, _ in known) * share, interval)
