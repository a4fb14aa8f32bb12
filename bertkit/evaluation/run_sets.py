"""Sets of runs, such as seeds and trials: results, intervals of mean scores, and failed seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.rows import Split
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.evaluation.scoring import EvalResult, predictions_file, read_results, score_split, write_predictions
from bertkit.metrics.baselines import Baselines, find_baseline_warning, find_best_baseline
from bertkit.metrics.intervals import Interval, count_examples, select_units
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.seeds import Spread, compute_spread, mean_interval, resample_means
from bertkit.progress import log
from bertkit.recipe.load import load_recipe
from bertkit.recipe.space import SweepPoint
from bertkit.storage.fingerprints import is_complete
from bertkit.storage.run_sets import parse_run_index
from bertkit.storage.runs import RunRecord
from bertkit.tasks import RowScores, Task, with_options
from bertkit.tokens.features import TaskContext

# Stored predictions are exact, but sums of other arrays may round differently.
_ROUNDING = 1e-6  # relative
INSUFFICIENT = "the stored predictions are not enough to compute the score again"


@dataclass(frozen=True)
class SetRun:
    """Run of a set: a seed, a trial of a sweep, or a task of GLUE.

    Args:
        name: Run folder in the folder of the set.
        status: Status of its record, such as ``finished`` or ``diverged``; without a record, ``waiting``.
        settings: Recipe key -> value, of the keys that differ between the runs.
        results: Result of each split, starting with the split that chose the best step; empty unless it is finished.
        seconds: Duration of the training.
        failure: Reason why it counts as failed, or None.
        steps: Number of optimizer steps, or None unless it is finished.
    """

    name: str
    status: str
    settings: SweepPoint = field(default_factory=dict)
    results: list[EvalResult] = field(default_factory=list)
    seconds: float = 0.0
    failure: str | None = None
    steps: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the run is finished or has diverged."""
        return self.status in ("finished", "diverged")

    @property
    def scores(self) -> dict[str, float | None]:
        """Scores of the split that chose the best step; empty unless the run is finished."""
        return self.results[0].scores if self.results else {}

    def result(self, split: str) -> EvalResult:
        """Return the result of a split of a finished run."""
        return next(result for result in self.results if result.split == split)


def describe_run(folder: Path, record: RunRecord | None, settings: SweepPoint | None = None) -> SetRun:
    """Return the status, results and settings of the run in a folder, given its record."""
    run = SetRun(folder.name, "waiting", settings or {})
    if record is None:
        return run
    seconds = float(record.get("seconds", 0.0))
    run = replace(run, status=record["status"], seconds=seconds, failure=record.get("error"))
    if run.status != "finished":
        return run
    return replace(run, results=read_results(record["results"], folder), steps=record.get("steps"))


def sort_runs(runs: Sequence[SetRun], metric: str) -> list[SetRun]:
    """Sort runs by a metric, the best first. Runs without a score come last, and equal scores keep their order."""
    # Negate scores instead of reversing the order, which would also reverse runs with equal scores.
    sign = 1 if is_lower_better(metric) else -1
    scores = {run.name: run.scores.get(metric) for run in runs}
    ranks = {name: math.inf if score is None else sign * score for name, score in scores.items()}
    return sorted(runs, key=lambda run: ranks[run.name])


# --- Stored predictions ---


@dataclass(frozen=True)
class StoredRuns:
    """Stored predictions of finished runs on one split, which make it possible to score rows without a model.

    Args:
        folder: Folder of the set.
        records: Name of a run -> its record.
        contexts: Name of a run -> its recipe, tokenizer and labels.
        task: Task family of all runs.
        split: Rows that all runs are scored on.
    """

    folder: Path
    records: Mapping[str, RunRecord]
    contexts: Mapping[str, TaskContext]
    task: Task
    split: Split

    def compare(self, run: SetRun) -> tuple[RowScores, TaskContext] | None:
        """Compare the predictions of a run with the gold values, or return None if predictions lack a stored value."""
        record = self.records[run.name]
        context = with_options(self.contexts[run.name], record.get("tuned", {}))
        predictions = read_predictions(self.folder / run.name, record, self.split)
        try:
            return self.task.compare(predictions, self.split.rows, context), context
        except KeyError:  # some values, such as vectors, are never stored
            return None

    def score(self, comparison: tuple[RowScores, TaskContext], rows: np.ndarray) -> dict[str, float]:
        """Score the rows with some indices, which can repeat, given the result of `compare`."""
        row_scores, context = comparison
        return self.task.score(select_units(row_scores, rows), context)

    def agrees(self, run: SetRun, scores: Mapping[str, float], metric: str) -> bool:
        """Return whether a score computed from stored predictions equals the recorded score of a run."""
        # The score of a custom metric differs if it depends on values that are not stored, such as probabilities.
        recorded_score = _as_float(run.result(self.split.name).scores[metric])
        score = scores.get(metric)
        if score is None or math.isnan(recorded_score):
            return score is not None and math.isnan(score)
        return math.isclose(recorded_score, score, rel_tol=_ROUNDING, abs_tol=1e-8)

    def find_mean_intervals(
        self, runs: Sequence[SetRun], metrics: Sequence[str]
    ) -> dict[str, tuple[Interval, str | None]]:
        """Compute the 95% interval of the mean score of several runs, for other runs on other rows.

        Returns:
            Metric -> the interval and None, or None and the reason why there is no interval.
        """
        comparisons = [comparison for run in runs if (comparison := self.compare(run)) is not None]
        if len(comparisons) < len(runs):
            return dict.fromkeys(metrics, (None, INSUFFICIENT))
        if len(runs) < 2:
            return dict.fromkeys(metrics, (None, "one run has no spread"))
        units = count_examples(comparisons[0][0])
        # 1. Score all rows, to check that stored predictions give the recorded scores.
        scores = [self.score(comparison, np.arange(units)) for comparison in comparisons]
        # 2. Resample the rows, which are the same for all metrics.
        resampled = resample_means(lambda index, rows: self.score(comparisons[index], rows), len(runs), units)
        intervals: dict[str, tuple[Interval, str | None]] = {}
        for metric in metrics:
            if metric not in resampled:
                intervals[metric] = None, "metrics of libraries are not resampled"
                continue
            if not all(self.agrees(run, run_scores, metric) for run, run_scores in zip(runs, scores, strict=True)):
                intervals[metric] = None, INSUFFICIENT
                continue
            recorded_scores = [_as_float(run.result(self.split.name).scores[metric]) for run in runs]
            interval = mean_interval(recorded_scores, resampled[metric], units)
            intervals[metric] = interval, None if interval else _explain_missing(recorded_scores)
        return intervals


def read_predictions(run: Path, record: RunRecord, split: Split) -> list[dict[str, Any]]:
    """Read the predictions that a finished run stored for a split, one record per row.

    If the file is missing or damaged, the run's model predicts the rows again, and the file is rewritten.

    Raises:
        ModelError: If the model is damaged too.
    """
    file = run / predictions_file(split.name)
    if not is_complete(file, record.get("predictions", {}).get(file.name)):
        log.info(f"{file} is missing or damaged; computing the predictions again")
        checkpoint = find_checkpoint(load_recipe(str(run / "recipe.yaml"), {"model": str(run)})).load(calibrated=False)
        predictions = score_split(checkpoint, split).predictions
        details = checkpoint.task.details(predictions, split.rows, checkpoint.context)
        write_predictions(run, split, predictions, details)
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _explain_missing(scores: Sequence[float]) -> str:
    if not all(map(math.isfinite, scores)):
        return "at least one run lacks this score"
    if len(set(scores)) == 1:
        return "the scores do not vary"
    return "the scores of so few runs differ too much"  # dialect: ok


def _as_float(score: float | None) -> float:
    return math.nan if score is None else score


# --- Seeds ---


@dataclass(frozen=True)
class SeedsOfSplit:
    """Summary of the scores of all finished runs on one split."""

    split: str
    rows: int
    spreads: dict[str, Spread | None]
    """Metric -> summary of its scores, or None if no run has a score."""
    baseline: dict[str, float | None]
    """Metric -> score of the baseline that reads no input."""


@dataclass(frozen=True)
class SeedsSummary:
    """Summary of a folder of seeds. The first of `splits` chose the best step of each run."""

    recipe: str
    model: str
    folder: str
    best_metric: str
    runs: list[SetRun]
    splits: list[SeedsOfSplit]
    best_seed: int | None
    """Seed with the best score, or None if no run has a score."""
    warnings: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[SetRun]:
        """Runs that failed."""
        return [run for run in self.runs if run.failure]

    @property
    def unfinished(self) -> list[SetRun]:
        """Runs that another process is still training."""
        return [run for run in self.runs if not run.has_ended]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``seeds.json`` and of the printed JSON."""
        entries = [
            {
                "seed": parse_run_index(run.name),
                "folder": run.name,
                "status": run.status,
                "scores": {result.split: result.scores for result in run.results},
                "failure": run.failure,
                "seconds": run.seconds,
            }
            for run in self.runs
        ]
        return {**asdict(self), "runs": entries}


def find_failure(run: SetRun, stored: StoredRuns, metric: str) -> str | None:
    """Return the reason why a seed counts as failed, or None.

    A finished run has failed if it gives every row the same answer, or if its score is not better than the score of the
    baseline that reads no input (Mosbach et al. 2021, "On the Stability of Fine-tuning BERT", section 3).
    """
    if run.status != "finished":
        return run.failure if run.status == "diverged" else None
    first, split = run.results[0], stored.split
    predictions = read_predictions(stored.folder / run.name, stored.records[run.name], split)
    # A model that gives every row the same answer has collapsed, even if its score beats the baseline.
    answers = {json.dumps(prediction["prediction"]) for prediction in predictions}
    gold = {json.dumps(row[stored.task.COLUMNS.gold], sort_keys=True, default=str) for row in split.rows}
    if len(answers) == 1 and len(gold) > 1:
        return "It gives every row the same answer."
    if first.scores[metric] is None:
        return f"Its {metric} is undefined."
    # Only the first baseline reads no input; the others can be better than a good model.
    return find_baseline_warning(first.scores, dict(list(first.baselines.items())[:1]), metric)


def summarize_split(runs: Sequence[SetRun], stored: StoredRuns) -> SeedsOfSplit:
    """Summarize the scores of finished runs on a split, with the interval of each mean over seeds and rows."""
    results = [run.result(stored.split.name) for run in runs]
    # Metrics and baselines are the same for all runs.
    first = results[0]
    spreads = {
        metric: compute_spread(
            [_as_float(result.scores[metric]) for result in results],
            lower_is_better=is_lower_better(metric),
            interval=interval,
            no_interval=reason,
        )
        for metric, (interval, reason) in stored.find_mean_intervals(runs, list(first.scores)).items()
    }
    return SeedsOfSplit(first.split, len(stored.split.rows), spreads, next(iter(first.baselines.values()), {}))


def warn_if_unclear(split: SeedsOfSplit, metric: str, baselines: Baselines) -> list[str]:
    """Return a warning if the mean over seeds is not significantly better than the strongest baseline."""
    spread = split.spreads[metric]
    name, baseline_score = find_best_baseline(baselines, metric)
    if spread is None or spread.interval is None or baseline_score is None:
        return []
    low, high = spread.interval
    if (high < baseline_score) if is_lower_better(metric) else (low > baseline_score):
        return []
    baseline = f"the {baseline_score:.4f} of a baseline ({name})"
    return [f"The mean {metric} of {spread.mean:.4f} is not significantly better than {baseline}."]
