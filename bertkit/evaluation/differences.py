"""Differences between two systems: the rows that the second wins or loses, overall and per slice."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from bertkit.data.columns import ColumnSpec
from bertkit.errors import DataError, shorten
from bertkit.evaluation.stored_predictions import StoredPredictionScorer
from bertkit.metrics.intervals import RowScores, count_examples, select_units
from bertkit.metrics.paired import count_correct, find_differing_units, swap_units
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.reliability import quantile_bins, sample_evenly
from bertkit.metrics.tags import ENTITY_METRICS, count_errors, list_entity_types
from bertkit.recipe.sections import Row
from bertkit.storage.disk import offload_to_disk
from bertkit.tasks import Predictions
from bertkit.tokens.features import Rows

MAX_CHANGED = 5000  # units whose effect is computed; each costs two scores of all rows
MAX_LABELS = 20
MAX_ANSWER = 160  # characters of an answer that is shown
_ROUNDING = 1e-12
_BY_TYPE = ("entities", "strict")  # arrays (rows, types, 3)

Extra = Mapping[str, Sequence[Any]]
"""Name of a column -> its value in each row."""
Units = Sequence[Sequence[int]]
"""Row indices of each unit: one row, or all rows of a query."""
Groups = dict[str, dict[str, Sequence[int]]]
"""Column or property to slice by -> value -> indices of its units, eight bytes each."""


@dataclass(frozen=True)
class ChangedRow:
    """A row that one system wins: its id, its inputs, and the answers as text."""

    id: str
    text: str
    gold: str
    first: str
    second: str


@dataclass(frozen=True)
class Slice:
    """Rows with the same value of a column or property, and the scores of both systems on them."""

    by: str
    value: str
    rows: int
    first: float
    second: float
    won: int
    lost: int


@dataclass(frozen=True)
class Changes:
    """Changes of the score when units are replaced one by one with the second system's answers."""

    metric: str
    """Metric that decides whether a unit is won or lost."""
    changed: int
    """Number of units that the two systems answer differently."""
    judged: int
    """Number of changed units whose effect was computed."""
    won: int
    lost: int
    won_rows: list[ChangedRow] = field(default_factory=list)
    """The rows that the second system wins with the largest effect, the largest first."""
    lost_rows: list[ChangedRow] = field(default_factory=list)
    slice_metric: str = ""
    slices: list[Slice] = field(default_factory=list)


@dataclass(frozen=True)
class SystemScores:
    """One system of a pair: predictions and row scores of each of its runs."""

    predictions: Sequence[Predictions]
    row_scores: Sequence[RowScores]


Systems = tuple[SystemScores, SystemScores]


def find_changes(scorer: StoredPredictionScorer, rows: Rows, systems: Systems, extra: Extra, max_shown: int) -> Changes:
    """Find the units that the second system wins and loses, overall and by slices.

    A unit is won if exchanging the answers of both systems to it raises the first system's score and lowers the
    second's. This works for any metric, even if a single row has no score, as with a correlation. With several seeds,
    the mean over pairs of seeds counts.

    Args:
        scorer: Scorer of the systems.
        rows: Rows of both systems, in the same order.
        systems: Baseline, and the system to compare with it.
        extra: Columns to slice by.
        max_shown: Maximum number of won, and of lost, rows to describe.
    """
    (first, second), metric = systems, scorer.recipe.best_metric
    pairs = list(zip(first.row_scores, second.row_scores, strict=False))
    # 1. Compute the effect of each unit with different answers, or of evenly spaced ones if there are too many.
    changed = sorted({int(unit) for pair in pairs for unit in find_differing_units(*pair)})
    tested_units = sample_evenly(changed, MAX_CHANGED)
    # F1 of a slice is undefined if a label is missing; the fraction of correct rows is always defined.
    scores = scorer.score(first.row_scores[0])
    fractions = list(count_correct(scores, first.row_scores[0], scorer.task.METRICS))
    slice_metric = "accuracy" if "accuracy" in fractions else (fractions or [metric])[0]
    effects = _mean_effects(scorer, {metric, slice_metric}, tested_units, pairs)
    wins, losses = _split_effects(effects[metric])
    # 2. Count wins and losses per slice, and describe the rows with the largest effects.
    units = group_rows(scorer, rows, first)
    groups = slice_values(scorer, rows, units, extra)
    outcome = list(map(set, _split_effects(effects[slice_metric])))
    entity_slices = _slice_entities(scorer, slice_metric, systems)
    describe = partial(_describe_row, scorer, rows, systems)
    return Changes(
        metric=metric,
        changed=len(changed),
        judged=len(tested_units),
        won=len(wins),
        lost=len(losses),
        won_rows=[describe(units[unit][0]) for unit in wins[:max_shown] if len(units)],
        lost_rows=[describe(units[unit][0]) for unit in losses[:max_shown] if len(units)],
        slice_metric=slice_metric,
        slices=[*_slice_units(scorer, slice_metric, groups, systems, outcome), *entity_slices],
    )


def group_rows(scorer: StoredPredictionScorer, rows: Rows, system: SystemScores) -> Units:
    """Return the row indices of each unit, or an empty list if they are unknown."""
    count = count_examples(system.row_scores[0])
    # An array of shape (rows, 1) needs eight bytes per unit, and is indexed like a list of lists.
    if count == len(rows):
        return cast(Units, np.arange(count)[:, None])
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(tuple(str(row.get(name)) for name in scorer.task.COLUMNS.groups), []).append(index)
    scored_units = []
    for indices in groups.values() if scorer.task.COLUMNS.groups else ():
        predictions = [system.predictions[0][index] for index in indices]
        # A query without a relevant passage, for example, is not scored.
        with suppress(DataError):
            scorer.task.compare(predictions, [rows[index] for index in indices], scorer.context)
            scored_units.append(indices)
    return scored_units if len(scored_units) == count else []


def _mean_effects(
    scorer: StoredPredictionScorer,
    metrics: Collection[str],
    units: Sequence[int],
    pairs: Sequence[tuple[RowScores, RowScores]],
) -> dict[str, dict[int, float]]:
    """Compute the effect of the second system's answer to each unit on each metric; positive is better.

    The effect is the mean of what the first system gains with the answer, and what the second loses without it.
    """
    effects = {metric: dict.fromkeys(units, 0.0) for metric in metrics}
    for first, second in pairs:
        first_scores, second_scores = (scorer.score(system) for system in (first, second))
        for unit in units:
            first_with, second_without = (
                scorer.score(system) for system in swap_units(first, second, np.array([unit]))
            )
            for metric, metric_effects in effects.items():
                # Example: the systems have accuracies of 0.5 and 0.8 on ten rows, and only the second answers this
                # unit correctly. With its answer, the first has 0.6; without it, the second has 0.7. The effect is 0.1.
                # The mean of both differences is needed, because the effect depends on the answers to other units.
                gain = first_with[metric] - first_scores[metric]
                effect = (gain + second_scores[metric] - second_without[metric]) / 2
                sign = -1 if is_lower_better(metric) else 1
                metric_effects[unit] += 0.0 if np.isnan(effect) else sign * effect / len(pairs)
    return effects


def _split_effects(effects: Mapping[int, float]) -> tuple[list[int], list[int]]:
    """Return the won units and the lost units, each with the largest effects first."""
    wins = sorted((unit for unit in effects if effects[unit] > _ROUNDING), key=lambda unit: -effects[unit])
    losses = sorted((unit for unit in effects if effects[unit] < -_ROUNDING), key=lambda unit: effects[unit])
    return wins, losses


def slice_values(scorer: StoredPredictionScorer, rows: Rows, units: Units, extra: Extra) -> Groups:
    """Group units by gold label, by thirds of length, and by each extra column."""
    if not len(units):
        return {}
    columns, slices = scorer.task.COLUMNS, Groups()
    gold = offload_to_disk(rows[indices[0]].get(columns.gold) for indices in units)
    if scorer.task.HAS_LABEL_NAMES and all(isinstance(value, str) for value in gold):
        slices[columns.gold] = _group_indices(gold)
    # Thirds keep enough units per group in a split of some hundred rows.
    lengths = [sum(count_words(rows[index], columns) for index in indices) for indices in units]
    if len(set(lengths)) > 1:
        slices["words"] = {
            f"{first} to {last}": array("q", (unit for unit, length in enumerate(lengths) if first <= length <= last))
            for first, last in quantile_bins(lengths, bins=3)
        }
    for name, values in extra.items():
        slices[name] = _group_indices([str(values[unit[0]]) for unit in units])
    return slices


def _group_indices(values: Sequence[Any]) -> dict[str, Sequence[int]]:
    """Group the indices of values by value, for the most frequent values; all others are one group."""
    counts = Counter(values)
    max_groups = MAX_LABELS if len(counts) <= MAX_LABELS else MAX_LABELS - 1
    frequent = [value for value, _ in counts.most_common(max_groups)]
    groups = {value: array("q") for value in frequent}
    for index, value in enumerate(values):
        name = value if value in groups else f"{len(counts) - len(frequent)} others"
        groups.setdefault(name, array("q")).append(index)
    return dict(groups)


def count_words(row: Row, columns: ColumnSpec) -> int:
    """Count the words of all inputs of a row."""
    values = [row[name] for name in (*columns.inputs, *columns.optional) if name in row]
    return sum(len(value if isinstance(value, list) else str(value).split()) for value in values)


def _slice_units(
    scorer: StoredPredictionScorer, metric: str, groups: Groups, systems: Systems, outcome: Sequence[set[int]]
) -> list[Slice]:
    """Score each group of units separately, and count its wins and losses."""
    slices = []
    for by, values in groups.items():
        for value, units in values.items():
            parts = [[select_units(run, np.array(units)) for run in system.row_scores] for system in systems]
            scores = _mean_scores(scorer, metric, parts)
            wins, losses = (len(unit_set.intersection(units)) for unit_set in outcome)
            slices.append(Slice(by, shorten(str(value), 40), len(units), *scores, wins, losses))
    return slices


def _slice_entities(scorer: StoredPredictionScorer, metric: str, systems: Systems) -> list[Slice]:
    """Score each entity type separately, on the rows in which the type is gold or predicted by either system.

    A row is won if the second system makes fewer errors of that type.
    """
    if "entities" not in systems[0].row_scores[0] or metric not in ENTITY_METRICS:
        return []
    slices, system_runs = list[Slice](), [system.row_scores for system in systems]
    for index, name in enumerate(list_entity_types(scorer.labels)):
        # (rows, 1, 3): the arrays of one type, as if the recipe had no other.
        type_scores = [
            [{**run, **{key: run[key][:, [index]] for key in _BY_TYPE}} for run in runs] for runs in system_runs
        ]
        errors = [np.mean([count_errors(run)[0] for run in system], axis=0) for system in type_scores]
        has_type = np.any([count_errors(run)[1] > 0 for system in type_scores for run in system], axis=0)
        if has_type.any():
            wins, losses = (int((gains > _ROUNDING).sum()) for gains in (errors[0] - errors[1], errors[1] - errors[0]))
            scores = _mean_scores(scorer, metric, type_scores)
            slices.append(Slice("entities", name, int(has_type.sum()), *scores, wins, losses))
    return slices


def _mean_scores(
    scorer: StoredPredictionScorer, metric: str, systems: Sequence[Sequence[RowScores]]
) -> tuple[float, float]:
    """Compute the mean score of each system's runs."""
    first, second = (float(np.mean([scorer.score(row_scores)[metric] for row_scores in system])) for system in systems)
    return first, second


def _describe_row(scorer: StoredPredictionScorer, rows: Rows, systems: Systems, index: int) -> ChangedRow:
    """Return a row and both answers as text; the answers of taggers are lists of entities."""
    row, columns = rows[index], scorer.task.COLUMNS
    texts = [as_text(row[name]) for name in (*columns.inputs, *columns.optional) if name in row]
    gold = as_text(row.get(columns.gold))
    answers = [[run_predictions[index]["prediction"] for run_predictions in system.predictions] for system in systems]
    if "entities" in systems[0].row_scores[0]:
        shown_answers = [
            scorer.task.details([{"prediction": tags} for tags in system], [row] * len(system), scorer.context).answers
            or []
            for system in answers
        ]
        gold = shown_answers[0][0].gold
        answers = [[answer.predicted for answer in system] for system in shown_answers]
    row_texts = shorten(" | ".join(texts), 300), shorten(gold, MAX_ANSWER)
    first, second = map(_count_answers, answers)
    return ChangedRow(str(row.get("id", index)), *row_texts, first, second)


def _count_answers(values: Sequence[Any]) -> str:
    """Describe the answers of a system's runs to a row; with several seeds, add how many gave each answer."""
    answers = Counter(shorten(as_text(value), MAX_ANSWER) for value in values)
    if len(values) == 1:
        return next(iter(answers))
    if len(answers) > 3:
        return f"{len(answers)} answers, such as {next(iter(answers))}"
    return ", ".join(f"{answer} ({count})" for answer, count in answers.most_common())


def as_text(value: object) -> str:
    """Return a value of a row or a prediction as text.

    >>> as_text(["a", None]), as_text({"text": ["Rome"]}), as_text(0.123456), as_text("")
    ('a _', 'Rome', '0.1235', '(nothing)')
    """
    if isinstance(value, dict):
        value = value.get("text", value)
    if isinstance(value, (list, tuple)):
        return " ".join("_" if item is None else str(item) for item in value) or "(nothing)"
    return f"{value:.4g}" if isinstance(value, float) else str(value) or "(nothing)"
