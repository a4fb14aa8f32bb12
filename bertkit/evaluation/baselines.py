"""Baselines of a run: learned from its training rows, kept in its folder, and scored wherever its model is."""

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
from bertkit.metrics.intervals import Interval, bootstrap_intervals, count_units, select_units
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

    learned: Mapping[str, Any]
    baseline_rows: Mapping[str, dict[str, RowScores]]
    """Split -> name of a baseline -> its predictions and gold values, as `Task.compare` returns them."""
    scores: Mapping[str, dict[str, dict[str, float]]]
    """Split -> name of a baseline -> metric -> score."""


def fit_and_score(task: Task, training: Rows, splits: Mapping[str, Rows], context: TaskContext) -> ScoredBaselines:
    """Fit the baselines of a task family to training rows, and score them on each split."""
    # Convert to JSON and back, because `eval` reads the file and must compute equal scores.
    learned = json.loads(to_json(task.fit_baselines(training, context)))
    baseline_rows = {name: compare_baselines(task, learned, rows, context) for name, rows in splits.items()}
    scores = {name: score_baselines(task, split_baselines, context) for name, split_baselines in baseline_rows.items()}
    return ScoredBaselines(learned, baseline_rows, scores)


def compare_baselines(task: Task, learned: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, RowScores]:
    """Compare the predictions of each baseline with gold values, as a model's are."""
    return {
        name: task.compare(records, rows, context) for name, records in task.baselines(learned, rows, context).items()
    }


def score_baselines(
    task: Task, baseline_rows: Mapping[str, RowScores], context: TaskContext
) -> dict[str, dict[str, float]]:
    """Score each baseline as a model is scored."""
    return {name: task.score(row_scores, context) for name, row_scores in baseline_rows.items()}


def write_learned(folder: Path, learned: Mapping[str, Any]) -> str:
    """Write what baselines have learned into the folder of a run, and return the checksum for its record."""
    write_json(folder / BASELINES_FILE, learned)
    return json_fingerprint(learned)


def read_learned(saved: CheckpointInfo) -> Mapping[str, Any] | None:
    """Read the fitted baselines of a checkpoint's run, or return None if they are unknown.

    A published model comes without this file, because it contains words of the training rows.
    """
    # A recipe with another task family, such as for a zero-shot test of the same model, has other baselines.
    run_task = saved.record.get("identity", {}).get("recipe", {}).get("task")
    file = saved.folder / BASELINES_FILE
    if "baselines" not in saved.record or run_task != saved.recipe.task:
        return None
    try:
        learned: Mapping[str, Any] | None = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError):
        learned = None
    if learned is None or json_fingerprint(learned) != saved.record["baselines"]:
        log.info(f"warning: {file} is missing or changed, so baselines are not scored; copy it from the run")
        return None
    return learned


@dataclass(frozen=True)
class BaselineComparison:
    """How far a model is ahead of the strongest baseline on the same rows, with 95% intervals over these rows."""

    baseline: str
    metric: str
    score: float
    """Score of the baseline."""
    score_interval: Interval
    difference: float
    """Difference of the two scores, above 0 where the model is better; also where lower scores are better."""
    interval: Interval
    is_clear: bool
    """Whether the model is significantly better: the complete interval of the difference is above 0."""


def compare_with_baselines(
    task: Task, scored: EvalOutput, baseline_rows: Mapping[str, RowScores], metric: str
) -> BaselineComparison | None:
    """Compare a model with the best baseline, or return None without baselines or if a score is undefined."""
    scores = score_baselines(task, baseline_rows, scored.context)
    name, baseline_score = find_best_baseline(scores, metric)
    if baseline_score is None or not math.isfinite(scored.scores[metric]):
        return None
    sign = -1 if is_lower_better(metric) else 1

    # Both are scored on the same resample, so rows that are hard for both do not widen the interval.
    def score(rows: np.ndarray) -> dict[str, float]:
        sides = (scored.row_scores, baseline_rows[name])
        model, baseline = (task.score(select_units(side, rows), scored.context)[metric] for side in sides)
        return {"difference": sign * (model - baseline), "baseline": baseline}

    units = count_units(scored.row_scores)
    intervals = bootstrap_intervals(score, units)
    difference, interval = score(np.arange(units))["difference"], intervals["difference"]
    # Without an interval, each resample of several rows has the same difference.
    is_clear = interval[0] > 0 if interval else units > 1 and difference > _ROUNDING
    return BaselineComparison(
        name, metric, float(baseline_score), intervals["baseline"], float(difference), interval, bool(is_clear)
    )


def make_result(
    task: Task,
    split: Split,
    scored: EvalOutput,
    details: TaskReport,
    baseline_rows: Mapping[str, RowScores],
    remedy: str = "",
) -> EvalResult:
    """Return the result of a split: the scores of a model and of its baselines, with warnings for readers.

    The caller adds what only it knows: the name of the model, the duration and the folder.

    Args:
        task: Task family of the model.
        split: Rows that are scored.
        scored: Predictions and scores of the model.
        details: Details of the predictions.
        baseline_rows: Name of a baseline -> its predictions, compared with the gold values.
        remedy: Advice if the model is not better than its baselines.
    """
    context, gold = scored.context, [row.get(task.COLUMNS.gold) for row in split.rows]
    baselines = score_baselines(task, baseline_rows, context)
    lead = compare_with_baselines(task, scored, baseline_rows, context.recipe.best_metric)
    positive, intervals = find_positive_label(task, context.recipe, context.labels), find_intervals(task, scored)
    return EvalResult(
        recipe=context.recipe.name,
        model=context.recipe.model,
        split=split.name,
        scores=null_for_nan(scored.scores),
        rows=len(split.rows),
        seconds=0.0,
        intervals=intervals.bounds,
        interval_methods=intervals.methods,
        positive_label=positive,
        lower_is_better=list(filter(is_lower_better, scored.scores)),
        baselines=null_for_nan(baselines),
        lead=asdict(lead) if lead else None,
        undefined=explain_undefined(task, scored, intervals, baseline_rows, baselines),
        training_rows=len(split.training_rows),
        source=split.source,
        warnings=[
            *split.warnings,
            *details.warnings,
            *_doubt_positive_label(gold, scored, positive),
            *(describe_missing_labels(gold, scored.predictions) if task.HAS_LABEL_NAMES else ()),
            *find_warnings(gold, scored, lead, remedy),
        ],
        tables=details.tables,
        ece=measure_ece(task, scored, split.rows),
    )


def _doubt_positive_label(gold: Sequence[Any], scored: EvalOutput, label: str | None) -> list[str]:
    """Warn if f1, precision and recall are computed for the frequent label, unless the recipe orders labels."""
    count, scores = gold.count(label), describe_positive_label(scored.scores, label)
    if not scores or scored.context.recipe.labels or 2 * count <= len(gold):
        return []
    setting = shlex.quote(f"labels=[{list_names(reversed(scored.context.labels))}]")
    message = (
        f"{format_fraction(count, len(gold))} rows have the label {label!r}, for which {scores[0].partition(':')[0]}"
    )
    return [f"{message} are computed: --set {setting} computes them for {scored.context.labels[0]!r}."]


def find_warnings(
    gold: Sequence[Any], scored: EvalOutput, lead: BaselineComparison | None, remedy: str = ""
) -> list[str]:
    """Return warnings if a model gives all rows one answer though gold values differ, or does not beat its baselines.

    The second warning comes last and includes the remedy.
    """
    warnings = []
    # 1. A collapsed model can have a high accuracy if one label is frequent.
    answers = {str(prediction["prediction"]) for prediction in scored.predictions}
    if len(answers) == 1 and len(set(map(str, gold))) > 1:
        warnings.append(f"The model gives every row the same answer, {min(answers)!r}: it has learned nothing yet.")
    if lead is None or lead.is_clear:
        return warnings
    # 2. A score below the baseline's is one message, and a higher one that could be chance another.
    text = find_baseline_warning(scored.scores, {lead.baseline: {lead.metric: lead.score}}, lead.metric)
    if text is None:
        scores = (scored.scores[lead.metric], lead.score)
        score, baseline = (f"{value:,.{4 if abs(value) < 100 else 1}f}" for value in scores)
        ends = f", 95% CI {lead.interval[0]:.4f} to {lead.interval[1]:.4f}" if lead.interval else ""
        text = (
            f"The {lead.metric} of {score} is not significantly above the {baseline} of a baseline ({lead.baseline}): "
            f"it is ahead by {lead.difference:.4f}{ends}."
        )
    return [*warnings, text + remedy]


def describe_missing_labels(gold: Sequence[Any], predictions: Predictions) -> list[str]:
    """Warn of labels that are never predicted, unless at most one is: such a model learned nothing."""
    # If all labels but one are missing, the model gives one answer, and another warning reports it.
    missing, names = (
        find_missing_labels(gold, predictions),
        {name for value in gold for name in get_label_types(value or ())},
    )
    warning = f"Never predicted: {len(missing)} of {len(names)} labels ({shorten(', '.join(missing))})."
    return [warning] if 0 < len(missing) < len(names) - 1 else []


def find_missing_labels(gold: Sequence[Any], predictions: Predictions) -> list[str]:
    """Return the gold labels, or entity types, that are never predicted, in alphabetical order."""
    predicted = {name for prediction in predictions for name in get_label_types(prediction["prediction"])}
    return sorted({name for value in gold for name in get_label_types(value or ())} - predicted)
