"""Errors of the answers of a stored run, for every task family that scores its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.errors import DataError, shorten
from bertkit.evaluation.differences import SystemScores, Units, as_text, count_words, group_rows
from bertkit.evaluation.stored_predictions import StoredPredictionScorer, StoredRun
from bertkit.metrics.intervals import count_examples, select_units
from bertkit.metrics.registry import is_lower_better
from bertkit.recipe.sections import Row
from bertkit.reports.examples import Example, find_labeled, get_confidence, make_example
from bertkit.reports.text import is_finite
from bertkit.storage.disk import offload_to_disk
from bertkit.tasks import RowScores

_EPS = 1e-6  # equal means can differ if they are summed in another order


@dataclass(frozen=True)
class RowAnswer:
    """A row, its answer and its error."""

    id: str
    text: str
    gold: str
    predicted: str
    error: float
    """0 for a correct answer; otherwise 1, the number of errors, or the size of the error."""
    confidence: float | None
    """Confidence in the wrong answer, or None if the model reports none."""
    words: int


@dataclass(frozen=True)
class Outcomes:
    """Errors of the answers of a run."""

    rate_name: str
    """Name of `rate`, such as ``share of wrong rows``."""
    errors: np.ndarray
    """Error of each unit, (units,)."""
    decisions: np.ndarray
    """Number of decisions in each unit, such as one per word, (units,)."""
    units: Units
    answers: Sequence[RowAnswer]
    """One answer per unit."""

    @property
    def rate(self) -> float:
        """Errors per decision."""
        return float(self.errors.sum() / max(self.decisions.sum(), 1))


def find_outcomes(scorer: StoredPredictionScorer, run: StoredRun, rows: Sequence[Row]) -> Outcomes:
    """Find the error of each answer of a run.

    The error is the first of these that the predictions allow: the number of errors, as counted by the task family; 1
    minus the score of a query; 0 or 1 for correct and wrong rows; the absolute difference of two numbers.

    Raises:
        DataError: If the stored predictions allow none of these.
    """
    row_scores = scorer.compare(run, rows)
    task = scorer.task
    details = scorer.answers(run, rows)
    examples = offload_to_disk(
        make_example(index, row, task.COLUMNS.gold, prediction, details and details[index])
        for index, (row, prediction) in enumerate(zip(rows, run.predictions, strict=True))
    )
    units = group_rows(scorer, rows, SystemScores([run.predictions], [row_scores]))
    decisions = np.ones(len(units) or len(rows))
    if task.count_errors is not None:
        errors, decisions = (np.asarray(counts, dtype=float) for counts in task.count_errors(row_scores))
        names = {"entities": "errors per gold or predicted entity", "tags": "share of wrong tags"}
        rate_name = next((name for array, name in names.items() if array in row_scores), "share of wrong answers")
    elif len(units) != len(rows) or not len(units):
        rate_name, errors = _score_units(scorer, row_scores)
    else:
        rate_name, errors = _judge_rows(scorer, row_scores, examples)
    if len(units) != len(errors):
        raise DataError("the run stores no score per row", "name a run of another task", file=run.file)
    pairs = zip(units, map(float, errors), strict=True)
    answers = offload_to_disk(_describe_answer(scorer, rows, indices, examples, error) for indices, error in pairs)
    return Outcomes(rate_name, errors, decisions, units, answers)


def _judge_rows(
    scorer: StoredPredictionScorer, row_scores: RowScores, examples: Sequence[Example]
) -> tuple[str, np.ndarray]:
    """Return the name of the rate and the error of each row: 0 or 1, or the absolute error of a number."""
    if all(example.correct is not None for example in examples):
        return "share of wrong rows", np.array([float(not example.correct) for example in examples])
    is_wrong = [gold != predicted for _, gold, predicted in find_labeled(examples, scorer.labels)]
    if len(is_wrong) == len(examples):
        return "share of wrong rows", np.array(is_wrong, dtype=float)
    if all(is_finite(example.gold, example.predicted) for example in examples):
        pairs = np.array([(example.gold, example.predicted) for example in examples], dtype=float)
        return "mean size of the error", np.abs(pairs[:, 1] - pairs[:, 0])
    return _score_units(scorer, row_scores)


def _score_units(scorer: StoredPredictionScorer, row_scores: RowScores) -> tuple[str, np.ndarray]:
    """Return the name of the rate and 1 minus the score of each unit, by a metric that is a mean over units.

    Raises:
        DataError: If there is no such metric.
    """
    scores = scorer.score(row_scores)
    # Units have a score only if the metric is a mean over units, which F1, for example, is not.
    unit_scores = [
        scorer.score(select_units(row_scores, np.array([unit]))) for unit in range(count_examples(row_scores))
    ]
    for metric in dict.fromkeys([scorer.recipe.best_metric, *scores]):
        values = np.array([unit[metric] for unit in unit_scores])
        if not is_lower_better(metric) and abs(values.mean() - scores[metric]) < _EPS and values.max(initial=0) <= 1:
            return f"1 - {metric}", 1 - values
    message = f"no metric of this run is a mean over its rows ({', '.join(scores)})"
    raise DataError(message, "add such a metric to `metrics`, e.g. accuracy, and run `bertkit eval`")


def _describe_answer(
    scorer: StoredPredictionScorer,
    rows: Sequence[Row],
    indices: Sequence[int],
    examples: Sequence[Example],
    error: float,
) -> RowAnswer:
    columns, example = scorer.task.COLUMNS, examples[indices[0]]
    row = rows[indices[0]]
    inputs = [row[name] for name in (*columns.inputs, *columns.optional) if name in row]
    texts = [as_text(value) for value in inputs if not isinstance(value, Mapping)]
    confidence = example.confidence
    label_sets = find_labeled([example], scorer.labels)
    if confidence is None and label_sets and error:
        confidence = next((value for value in (get_confidence(*label_sets[0]),) if value >= 0), None)
    return RowAnswer(
        id=example.id,
        text=shorten(" | ".join(texts), 400),
        gold=as_text(example.gold),
        predicted=as_text(example.predicted),
        error=error,
        confidence=confidence,
        words=sum(count_words(rows[index], columns) for index in indices),
    )


SORTS: dict[str, Callable[[RowAnswer], Any]] = {
    # 1.0 sorts answers without a confidence last, because negated confidences are not positive.
    "confidence": lambda answer: (1.0 if answer.confidence is None else -answer.confidence, -answer.error),
    "length": lambda answer: (-answer.words, -answer.error),
    "error": lambda answer: -answer.error,
    "label": lambda answer: (answer.gold, -(answer.confidence or 0), -answer.error),
}
"""Name of an order -> sort key of an answer."""
