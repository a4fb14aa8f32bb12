"""Fit a temperature, and thresholds, to rows that a checkpoint was not trained on; keep them beside its weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertkit.data.rows import Split
from bertkit.errors import UsageError
from bertkit.evaluation.calibration import (
    CALIBRATION_FILE,
    SavedCalibration,
    check_share,
    fingerprint_all,
    thresholds_for,
    write_calibration,
)
from bertkit.evaluation.checkpoint import SavedCheckpoint
from bertkit.evaluation.ensemble import find_members
from bertkit.evaluation.scoring import Scored, score_split
from bertkit.progress import SILENT, Progress, stage
from bertkit.recipe import Recipe
from bertkit.storage.outputs import claimed
from bertkit.workflows.evaluate import splits_to_score
from bertkit.workflows.steps.training_rows import Choice, judge_training_rows

log = logging.getLogger("bertkit")

_LEAST_ROWS = 20
_PRECISIONS = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class CalibrationResult:
    """What a calibration found; ``before`` and ``after`` are of rows that the temperature was not fitted to."""

    model: str
    split: str
    source: str
    rows: int
    temperature: float
    before: dict[str, dict[str, Any]]
    """Measure -> ``value`` and ``interval``."""
    after: dict[str, dict[str, Any]]
    file: str
    decisions: int = 0
    per: str = "row"
    """What there is one decision for: each ``row``, each ``label`` of a row, or each ``word``."""
    thresholds: dict[str, float] | None = None
    f1_macro: dict[str, float] | None = None
    """With several labels per row: ``before`` with 0.5 for all labels, and ``after`` with thresholds of other rows."""
    abstention: list[dict[str, Any]] = field(default_factory=list)
    """Precision that is asked for -> ``threshold``, ``coverage`` and ``precision``; None where it cannot be shown."""
    risk_coverage: list[dict[str, float]] = field(default_factory=list)
    prediction_sets: list[dict[str, Any]] = field(default_factory=list)
    """Coverage that is asked for, and what `bertkit.metrics.calibration.measure_sets` says of it."""
    training_rows: int = 0


def calibrate(
    recipe: Recipe,
    *,
    split: str | None = None,
    coverages: Sequence[float] = (),
    training_rows: Choice = "refuse",
    progress: Progress = SILENT,
) -> CalibrationResult:
    """Calibrate the checkpoint or the folder of seeds `recipe.model` on the first validation split, or on `split`.

    With `coverages`, prediction sets are measured too. Beside calibration.json, a page shows what was found.

    Raises:
        UsageError: a task family without probabilities, a checkpoint that is not in a folder of one's own, too few
            rows, or a coverage that is no share.
        BertkitError: any other of the kind that fits; see `bertkit.errors`.
    """
    for coverage in coverages:
        check_share("--coverage", coverage)
    with stage(progress, "reading the data", total=1):
        saved = find_members(recipe)
        if not hasattr(saved.task, "gold_probabilities"):
            raise UsageError(f"{recipe.task} has no probabilities of labels to calibrate", "")
        if coverages:
            _check_sets(saved)
        if not Path(recipe.model).is_dir():
            what = f"{recipe.model} is not a folder, and a calibration is kept beside the weights"
            raise UsageError(what, f"hf download {recipe.model} --local-dir DIR, then --model DIR")
        name, rows = next(iter(judge_training_rows(saved, splits_to_score(saved, split), training_rows).items()))
        if len(rows.rows) < _LEAST_ROWS:
            raise UsageError(f"{len(rows.rows)} rows are too few to calibrate on", f"give at least {_LEAST_ROWS}")
    with claimed(saved.calibration_folder / CALIBRATION_FILE):
        with stage(progress, f"loading {recipe.model_name}"):
            checkpoint = saved.load(inference=True, calibrated=False)
        scored = score_split(checkpoint, rows, progress)
        return _fit(saved, name, rows, scored, coverages)


def _fit(
    saved: SavedCheckpoint, name: str, split: Split, scored: Scored, coverages: Sequence[float]
) -> CalibrationResult:
    import numpy as np

    from bertkit.metrics import calibration as metrics
    from bertkit.reports.calibration import write_calibration_page

    decisions = saved.task.gold_probabilities(scored.predictions, split.rows, scored.setup)  # type: ignore[attr-defined]
    found, gold, numbers, per = decisions
    one = per == "row"
    temperature = metrics.fit_temperature(found, gold)
    tempered, across = metrics.temper(found, temperature), metrics.temper_across(found, gold, numbers)
    confidence, right = tempered.max(axis=1), (tempered.argmax(axis=1) == gold).astype(int)
    thresholds, f1 = None, None
    if per == "label":
        thresholds, f1 = _tune_thresholds(tempered[:, 1], gold, scored.setup.labels)
    calibration = SavedCalibration(
        model=fingerprint_all(saved.folder, saved.member_folders),
        task=saved.recipe.task,
        split=name,
        source=split.source,
        rows=len(split.rows),
        temperature=temperature,
        thresholds=thresholds,
        confidence=[float(f"{value:.7g}") for value in confidence] if one else [],
        right=right.tolist() if one else [],
        gold=[float(f"{value:.7g}") for value in tempered[np.arange(len(gold)), gold]] if one else [],
    )
    write_calibration(saved.calibration_folder, calibration)
    abstentions = [(asked, metrics.find_abstention(confidence, right, asked)) for asked in _PRECISIONS if one]
    curve = metrics.risk_coverage(confidence, right) if one else []
    result = CalibrationResult(
        model=saved.recipe.model,
        split=name,
        source=split.source,
        rows=len(split.rows),
        temperature=temperature,
        before=metrics.describe_calibration(found, gold, numbers),
        after=metrics.describe_calibration(across, gold, numbers),
        file=str(saved.calibration_folder / CALIBRATION_FILE),
        decisions=len(gold),
        per=per,
        thresholds=thresholds,
        f1_macro=f1,
        abstention=[{"asked": asked, **(one._asdict() if one else {})} for asked, one in abstentions],
        risk_coverage=[dict(zip(("coverage", "precision", "threshold"), point, strict=True)) for point in curve],
        prediction_sets=[{"asked": asked, **metrics.measure_sets(found, gold, numbers, asked)} for asked in coverages],
        training_rows=len(split.training_rows),
    )
    sides = {"before": found.max(axis=1), "after": across.max(axis=1)}
    write_calibration_page(saved.calibration_folder, asdict(result), sides, right)
    return result


def _tune_thresholds(
    probabilities: Any, gold: Any, labels: tuple[str, ...]
) -> tuple[dict[str, float] | None, dict[str, float]]:
    """Tune a threshold per label, and compare macro F1 at 0.5 with that at thresholds of other rows; keep the better.

    `probabilities` and `gold` are of all labels of all rows, row by row.
    """
    from bertkit.metrics import calibration as metrics

    yes, is_gold = (values.reshape(-1, len(labels)) for values in (probabilities, gold))
    tuned = [metrics.tune_threshold(yes[:, n], is_gold[:, n]) for n in range(len(labels))]
    f1 = _compare_f1(yes, is_gold)
    return dict(zip(labels, tuned, strict=True)) if f1["after"] > f1["before"] else None, f1


def _compare_f1(yes: Any, gold: Any) -> dict[str, float]:
    """Compute macro F1 at 0.5, and at thresholds that were tuned to the rows of other folds."""
    import numpy as np

    from bertkit.metrics import calibration as metrics

    chosen = np.zeros_like(gold, dtype=bool)
    for is_held_out in metrics.folds(np.arange(len(gold))):
        rest = ~is_held_out
        tuned = [metrics.tune_threshold(yes[rest, n], gold[rest, n]) for n in range(gold.shape[1])]
        chosen[is_held_out] = yes[is_held_out] >= np.array(tuned)
    both = {"before": yes >= 0.5, "after": chosen}
    return {
        name: float(np.mean(2 * (one & (gold == 1)).sum(axis=0) / np.maximum(one.sum(axis=0) + gold.sum(axis=0), 1)))
        for name, one in both.items()
    }


def with_thresholds(recipe: Recipe, *, precision: float | None, coverage: float | None) -> Recipe:
    """Return the recipe with the thresholds that its checkpoint's calibration has for a precision or a coverage.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.evaluation.calibration.thresholds_for`.
    """
    if precision is None and coverage is None:
        return recipe
    saved = find_members(recipe)
    if "set_above" not in saved.task.OPTIONS:
        raise UsageError(
            f"--precision and --coverage are for one label per row, not for {recipe.task}", "leave them out"
        )
    options, lines = thresholds_for(saved.read_calibration(), recipe, precision, coverage)
    for line in lines:
        log.info(line)
    return recipe.model_copy(update={"options": {**recipe.options, **options}})


def _check_sets(saved: SavedCheckpoint) -> None:
    """Check that a task family has abstention and prediction sets.

    Raises:
        UsageError: it has not.
    """
    if "set_above" not in saved.task.OPTIONS:
        what = f"--precision and --coverage are for one label per row, not for {saved.recipe.task}"
        raise UsageError(what, "leave them out")
    if saved.recipe.options.get("multi_label"):
        raise UsageError("--precision and --coverage are for one label per row, not for several", "leave them out")
