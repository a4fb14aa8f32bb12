"""Baselines of a run: fitted to its training rows, stored in its folder, and scored on the same rows as its model."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.checks import format_fraction, get_label_types
from bertkit.data.labels import list_names
from bertkit.data.rows import Split
from bertkit.errors import shorten
from bertkit.evaluation.checkpoint import CheckpointInfo
from bertkit.evaluation.scoring import (
    EvalOutput,
    EvalResult,
    explain_undefined,
    find_intervals,
    find_positive_label,
    measure_ece,
)
from bertkit.metrics.baselines import find_baseline_warning, find_best_baseline
from bertkit.metrics.intervals import Interval, bootstrap_intervals, count_examples, select_units
from bertkit.metrics.registry import describe_positive_label, is_lower_better
from bertkit.progress import log
from bertkit.storage.files import null_for_nan, to_json, write_json
from bertkit.storage.fingerprints import json_fingerprint
from bertkit.tasks import Predictions, RowScores, Task, TaskReport
from bertkit.tokens.features import Rows, TaskContext

BASELINES_FILE = "baselines.json"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class ScoredBaselines:
    """Baselines that were fitted to the training rows of a run, with their predictions and scores."""

    state: Mapping[str, Any]
    """Fitted parameters of all baselines, as `Task.fit_baselines` returns them."""
    row_scores: Mapping[str, dict[str, RowScores]]
    """Split -> name of a baseline -> its predictions and gold values, as `Task.compare` returns them."""
    scores: Mapping[str, dict[str, dict[str, float]]]
    """Split -> name of a baseline -> metric -> score."""


def fit_and_score(task: Task, training_rows: Rows, splits: Mapping[str, Rows], context: TaskContext) -> ScoredBaselines:
    """Fit the baselines of a task family to training rows, and score them on each split."""
    # Convert the state to JSON and back, because `eval` reads it from a file and must compute equal scores.
    state = json.loads(to_json(task.fit_baselines(training_rows, context)))
    row_scores = {name: compare_baselines(task, state, rows, context) for name, rows in splits.items()}
    scores = {name: score_baselines(task, baselines, context) for name, baselines in row_scores.items()}
    return ScoredBaselines(state, row_scores, scores)


def compare_baselines(task: Task, state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, RowScores]:
    """Compare the predictions of each baseline with the gold values; see `Task.compare`."""
    return {
        name: task.compare(records, rows, context) for name, records in task.baselines(state, rows, context).items()
    }


def score_baselines(
    task: Task, baselines: Mapping[str, RowScores], context: TaskContext
) -> dict[str, dict[str, float]]:
    """Return the metrics of each baseline."""
    return {name: task.score(row_scores, context) for name, row_scores in baselines.items()}


def write_baselines(folder: Path, state: Mapping[str, Any]) -> str:
    """Write fitted baselines into the folder of a run, and return the checksum for its record."""
    write_json(folder / BASELINES_FILE, state)
    return json_fingerprint(state)


def read_baselines(info: CheckpointInfo) -> Mapping[str, Any] | None:
    """Read the fitted baselines of a checkpoint's run, or return None if they are unknown.

    A published model comes without their file, because the file contains words of the training rows.
    """
    # Another task family, as in a zero-shot test of the same model, has other baselines.
    if "baselines" not in info.record or info.run_recipe.get("task") != info.recipe.task:
        return None
    file = info.folder / BASELINES_FILE
    try:
        state: Mapping[str, Any] | None = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError):
        state = None
    if state is None or json_fingerprint(state) != info.record["baselines"]:
        log.info(f"warning: {file} is missing or changed, so baselines are not scored; copy it from the run")
        return None
    return state


@dataclass(frozen=True)
class BaselineComparison:
    """Comparison of a model with the strongest baseline on the same rows, with 95% intervals over these rows."""

    baseline: str
    metric: str
    score: float
    """Score of the baseline."""
    score_interval: Interval
    difference: float
    """Difference of the two scores, positive if the model is better, even if lower scores are better."""
    interval: Interval
    is_clear: bool
    """Whether the model is significantly better: the complete interval of the difference is above 0."""


def compare_with_baselines(
    task: Task, output: EvalOutput, baselines: Mapping[str, RowScores], metric: str
) -> BaselineComparison | None:
    """Compare a model with the best baseline, or return None without baselines or if a score is undefined."""
    scores = score_baselines(task, baselines, output.context)
    name, baseline_score = find_best_baseline(scores, metric)
    if baseline_score is None or not math.isfinite(output.scores[metric]):
        return None
    sign = -1 if is_lower_better(metric) else 1

    # Model and baseline are scored on the same resample: rows that are hard for both do not widen the interval.
    def score(rows: np.ndarray) -> dict[str, float]:
        systems = (output.row_scores, baselines[name])
        model, baseline = (task.score(select_units(system, rows), output.context)[metric] for system in systems)
        return {"difference": sign * (model - baseline), "baseline": baseline}

    units = count_examples(output.row_scores)
    intervals = bootstrap_intervals(score, units)
    difference, interval = score(np.arange(units))["difference"], intervals["difference"]
    # There is no interval if all resamples of several rows have the same difference.
    is_clear = interval[0] > 0 if interval else units > 1 and difference > _ROUNDING
    return BaselineComparison(
        name, metric, float(baseline_score), intervals["baseline"], float(difference), interval, bool(is_clear)
    )


def make_result(
    task: Task,
    split: Split,
    output: EvalOutput,
    details: TaskReport,
    baselines: Mapping[str, RowScores],
    remedy: str = "",
) -> EvalResult:
    """Return the result of a split: the scores of a model and of its baselines, with warnings for readers.

    The caller adds the name of the model, the duration and the folder.

    Args:
        task: Task family of the model.
        split: Rows that are scored.
        output: Predictions and scores of the model.
        details: Details of the predictions.
        baselines: Name of a baseline -> its predictions, compared with the gold values.
        remedy: Advice if the model is not better than its baselines.
    """
    context = output.context
    gold = [row.get(task.COLUMNS.gold) for row in split.rows]
    baseline_scores = score_baselines(task, baselines, context)
    comparison = compare_with_baselines(task, output, baselines, context.recipe.best_metric)
    positive_label = find_positive_label(task, context.recipe, context.labels)
    intervals = find_intervals(task, output)
    return EvalResult(
        recipe=context.recipe.name,
        model=context.recipe.model,
        split=split.name,
        scores=null_for_nan(output.scores),
        rows=len(split.rows),
        seconds=0.0,
        intervals=intervals.bounds,
        interval_methods=intervals.methods,
        positive_label=positive_label,
        lower_is_better=list(filter(is_lower_better, output.scores)),
        baselines=null_for_nan(baseline_scores),
        lead=asdict(comparison) if comparison else None,
        undefined=explain_undefined(task, output, intervals, baselines, baseline_scores),
        training_rows=len(split.training_rows),
        source=split.source,
        warnings=[
            *split.warnings,
            *details.warnings,
            *_doubt_positive_label(gold, output, positive_label),
            *(describe_missing_labels(gold, output.predictions) if task.HAS_LABEL_NAMES else ()),
            *find_warnings(gold, output, comparison, remedy),
        ],
        tables=details.tables,
        ece=measure_ece(task, output, split.rows),
    )


def _doubt_positive_label(gold: Sequence[Any], output: EvalOutput, label: str | None) -> list[str]:
    """Warn if f1, precision and recall are computed for the frequent label, unless the recipe orders labels."""
    count = gold.count(label)
    scores = describe_positive_label(output.scores, label)
    if not scores or output.context.recipe.labels or 2 * count <= len(gold):
        return []
    labels, metrics = output.context.labels, scores[0].partition(":")[0]
    setting = shlex.quote(f"labels=[{list_names(reversed(labels))}]")
    frequency = f"{format_fraction(count, len(gold))} rows have the label {label!r}"
    return [f"{frequency}, for which {metrics} are computed: --set {setting} computes them for {labels[0]!r}."]


def find_warnings(
    gold: Sequence[Any], output: EvalOutput, comparison: BaselineComparison | None, remedy: str = ""
) -> list[str]:
    """Return warnings if a model gives all rows one answer though gold values differ, or does not beat its baselines.

    The warning about baselines comes last and ends with the remedy.
    """
    warnings = []
    # 1. A collapsed model can have a high accuracy if one label is frequent.
    answers = {str(prediction["prediction"]) for prediction in output.predictions}
    if len(answers) == 1 and len(set(map(str, gold))) > 1:
        warnings.append(f"The model gives every row the same answer, {min(answers)!r}: it has learned nothing yet.")
    if comparison is None or comparison.is_clear:
        return warnings
    # 2. A score can be below the baseline's, or above it by chance.
    metric, baseline = comparison.metric, comparison.baseline
    text = find_baseline_warning(output.scores, {baseline: {metric: comparison.score}}, metric)
    if text is None:
        scores = (output.scores[metric], comparison.score)
        score, baseline_score = (f"{value:,.{4 if abs(value) < 100 else 1}f}" for value in scores)
        interval = ", 95% CI {:.4f} to {:.4f}".format(*comparison.interval) if comparison.interval else ""
        text = (
            f"The {metric} of {score} is not significantly above the {baseline_score} of a baseline ({baseline}): "
            f"it is ahead by {comparison.difference:.4f}{interval}."
        )
    return [*warnings, text + remedy]


def describe_missing_labels(gold: Sequence[Any], predictions: Predictions) -> list[str]:
    """Warn of labels that are never predicted, unless only one label is predicted: another warning reports that."""
    missing_labels = find_missing_labels(gold, predictions)
    count = len({name for value in gold for name in get_label_types(value or ())})
    warning = f"Never predicted: {len(missing_labels)} of {count} labels ({shorten(', '.join(missing_labels))})."
    return [warning] if 0 < len(missing_labels) < count - 1 else []


def find_missing_labels(gold: Sequence[Any], predictions: Predictions) -> list[str]:
    """Return the gold labels, or entity types, that are never predicted, in alphabetical order."""
    predicted = {name for prediction in predictions for name in get_label_types(prediction["prediction"])}
    return sorted({name for value in gold for name in get_label_types(value or ())} - predicted)
