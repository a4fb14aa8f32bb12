"""Several runs of one recipe that differ in the seed: their scores, which failed, and how sure the mean is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.rows import Split
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.evaluation.scoring import predictions_file, score_split, write_predictions
from bertkit.metrics.baselines import Baselines, find_unbeaten, strongest
from bertkit.metrics.intervals import count_units, take
from bertkit.metrics.registry import is_lower_better
from bertkit.metrics.seeds import Spread, describe_spread, mean_interval, resample_mean
from bertkit.progress import log
from bertkit.recipe.load import load_recipe
from bertkit.storage.fingerprints import is_whole
from bertkit.storage.runs import RunRecord
from bertkit.storage.seeds import seed_folder
from bertkit.tasks import Compared, Task, with_options
from bertkit.tokens.features import Setup

# relative: predictions are kept as they are, but sums of other arrays may round differently
_ROUNDING = 1e-6


@dataclass(frozen=True)
class SeedRun:
    """What came of one seed."""

    seed: int
    folder: str
    """Name of its run folder in the folder of the seeds."""
    status: str
    """``finished`` or ``diverged``; another status if another process still trains the run."""
    scores: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Split -> metric -> score; empty unless it is finished."""
    failure: str | None = None
    """Why it counts as failed: it diverged, or has learned nothing."""
    seconds: float = 0.0


@dataclass(frozen=True)
class SeedsOfSplit:
    """The scores of all finished runs on one split."""

    split: str
    rows: int
    spreads: dict[str, Spread | None]
    """Metric -> summary of its scores; None where no run has one."""
    baseline: dict[str, float | None]
    """Metric -> score of the baseline that reads nothing."""


@dataclass(frozen=True)
class SeedsSummary:
    """The runs of a folder of seeds and what they scored; the first split chose each run's best step."""

    recipe: str
    model: str
    folder: str
    best_metric: str
    runs: list[SeedRun]
    splits: list[SeedsOfSplit]
    best_seed: int | None
    """The seed of the highest score; None where no run has one."""
    warnings: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[SeedRun]:
        """The runs that failed."""
        return [run for run in self.runs if run.failure]

    @property
    def unfinished(self) -> list[SeedRun]:
        """The runs that have not ended, because another process trains them."""
        return [run for run in self.runs if run.status not in ("finished", "diverged")]


def describe_run(
    folder: Path, seed: int, record: RunRecord, task: Task, validation: Split, best_metric: str
) -> SeedRun:
    """Return what came of a seed, from the record and the stored predictions of its run.

    A finished run has failed where it gives every row the same answer, or scores no better than the baseline that
    reads nothing (Mosbach et al. 2021, "On the Stability of Fine-tuning BERT", section 3).
    """
    status, name = str(record["status"]), seed_folder(folder, seed).name
    seconds = float(record.get("seconds", 0.0))
    if status != "finished":
        return SeedRun(seed, name, status, failure=record["error"] if status == "diverged" else None, seconds=seconds)
    scores = {result["split"]: result["scores"] for result in record["results"]}
    first = record["results"][0]
    answers = {json.dumps(record["prediction"]) for record in read_predictions(folder / name, record, validation)}
    gold = {json.dumps(row[task.COLUMNS.gold], sort_keys=True, default=str) for row in validation.rows}
    failure = None
    if len(answers) == 1 and len(gold) > 1:
        failure = "It gives every row the same answer."
    elif first["scores"][best_metric] is None:
        failure = f"Its {best_metric} is undefined."
    else:
        failure = find_unbeaten(first["scores"], dict(list(first["baselines"].items())[:1]), best_metric)
    return SeedRun(seed, name, status, scores, failure, seconds)


def summarize_split(
    folder: Path, runs: Sequence[SeedRun], records: Mapping[int, RunRecord], task: Task, split: Split, setup: Setup
) -> SeedsOfSplit:
    """Summarize the scores of finished runs on a split, with an interval of each mean over seeds and rows.

    `setup` has the recipe, the tokenizer and the labels, which all runs share.
    """
    finished = [run for run in runs if run.status == "finished"]
    compared = {run.seed: read_compared(folder / run.folder, records[run.seed], task, split, setup) for run in finished}
    intervals, reasons = _find_intervals(finished, compared, task, split.name)
    spreads = {
        metric: describe_spread(
            [_number(run.scores[split.name][metric]) for run in finished],
            lower_is_better=is_lower_better(metric),
            interval=intervals.get(metric),
            no_interval=reasons.get(metric),
        )
        for metric in finished[0].scores[split.name]
    }
    of_split = next(of for of in records[finished[0].seed]["results"] if of["split"] == split.name)
    baseline: dict[str, float | None] = next(iter(of_split["baselines"].values()), {})
    return SeedsOfSplit(split.name, len(split.rows), spreads, baseline)


def find_best(runs: Sequence[SeedRun], split: str, metric: str) -> int | None:
    """Return the seed with the best score on a split; the first of several."""
    sign = -1 if is_lower_better(metric) else 1
    scored = [(sign * score, -run.seed) for run in runs if (score := run.scores.get(split, {}).get(metric)) is not None]
    return -max(scored)[1] if scored else None


def read_predictions(run: Path, record: RunRecord, split: Split) -> list[dict[str, Any]]:
    """Read the predictions that a finished run has stored for a split, one record per row.

    Where they are missing or damaged, its model computes them anew, and they are stored again.

    Raises:
        ModelError: the model is damaged too.
    """
    file = run / predictions_file(split.name)
    if is_whole(file, record.get("predictions", {}).get(file.name)):
        return _read_lines(file)
    log.info(f"{file} is missing or damaged, so its predictions are computed anew")
    checkpoint = find_checkpoint(load_recipe(str(run / "recipe.yaml"), {"model": str(run)})).load(calibrated=False)
    predictions = score_split(checkpoint, split).predictions
    details = checkpoint.task.details(predictions, split.rows, checkpoint.setup)
    write_predictions(run, split, predictions, details)
    return _read_lines(file)


def _read_lines(file: Path) -> list[dict[str, Any]]:
    with file.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def read_compared(
    run: Path, record: RunRecord, task: Task, split: Split, setup: Setup
) -> tuple[Compared, Setup] | None:
    """Compare a run's stored predictions with the gold values; None where what is stored does not suffice."""
    setup = with_options(setup, record.get("tuned", {}))
    try:
        return task.compare(read_predictions(run, record, split), split.rows, setup), setup
    except KeyError:  # of a key that is not written to disk, such as a vector
        return None


def _find_intervals(
    runs: Sequence[SeedRun], compared: Mapping[int, tuple[Compared, Setup] | None], task: Task, split: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Compute the interval of each metric's mean, or say why there is none."""
    metrics = list(runs[0].scores[split])
    known = [found for run in runs if (found := compared[run.seed]) is not None]
    if len(runs) < 2 or len(known) < len(runs):
        reason = "the stored predictions do not suffice" if len(known) < len(runs) else "one run has no spread"
        return {}, dict.fromkeys(metrics, reason)
    count = count_units(known[0][0])

    def score(number: int, rows: np.ndarray) -> dict[str, float]:
        arrays, setup = known[number]
        return task.score(take(arrays, rows), setup)

    again = [score(number, np.arange(count)) for number in range(len(runs))]
    resampled = resample_mean(score, len(runs), count)
    intervals, reasons = {}, {}
    for metric in metrics:
        if metric not in resampled:
            reasons[metric] = "metrics of libraries are not resampled"
            continue
        stored = [_number(run.scores[split][metric]) for run in runs]
        if not np.allclose(stored, [scores[metric] for scores in again], rtol=_ROUNDING, equal_nan=True):
            reasons[metric] = "the stored predictions do not suffice"
            continue
        intervals[metric] = mean_interval(stored, resampled[metric], count)
        if intervals[metric] is None:
            reasons[metric] = _why_no_interval(stored)
    return intervals, reasons


def _why_no_interval(scores: Sequence[float]) -> str:
    if not all(map(math.isfinite, scores)):
        return "a run has no such score"
    return "the scores do not vary" if len(set(scores)) == 1 else "the scores of so few runs differ too much"


def find_unclear(split: SeedsOfSplit, metric: str, baselines: Baselines) -> list[str]:
    """Say in a line that the mean over seeds is not above the strongest baseline beyond chance; none where it is."""
    spread, (name, least) = split.spreads[metric], strongest(baselines, metric)
    if spread is None or spread.interval is None or least is None:
        return []
    low, high = spread.interval
    if (high < least) if is_lower_better(metric) else (low > least):
        return []
    of_baseline = f"the {least:.4f} of a baseline ({name})"
    return [f"The mean {metric} of {spread.mean:.4f} is not better than {of_baseline} beyond chance."]


def _number(score: float | None) -> float:
    return math.nan if score is None else score
