"""Fit a temperature and thresholds to rows that a checkpoint was not trained on, and store them next to its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.rows import digest_rows
from bertkit.errors import UsageError
from bertkit.evaluation.calibration import (
    CALIBRATION_FILE,
    DECISION_FILE,
    SavedCalibration,
    check_fraction,
    choose_thresholds,
    fingerprint_all,
    write_calibration,
)
from bertkit.evaluation.checkpoint import CheckpointInfo, find_members
from bertkit.evaluation.scoring import score_split
from bertkit.evaluation.splits import OnOverlap, resolve_overlap, splits_to_score
from bertkit.metrics import calibration as metrics
from bertkit.metrics import reliability
from bertkit.metrics.calibration import Decisions, Fold
from bertkit.metrics.registry import f1_macro
from bertkit.progress import stage
from bertkit.recipe.records import Recipe
from bertkit.storage.outputs import lock_output
from bertkit.tasks import with_options

_MIN_ROWS = 20
_PRECISIONS = (0.9, 0.95, 0.99)  # listed with their thresholds in the result and on the page


@dataclass(frozen=True)
class CalibrationResult:
    """Result of a calibration; ``after`` is measured on rows that the temperature was not fitted to."""

    model: str
    split: str
    source: str
    rows: int
    temperature: metrics.Temperature
    before: dict[str, dict[str, Any]]
    """Measure -> ``value`` and ``interval``."""
    after: dict[str, dict[str, Any]]
    file: str
    decisions: int = 0
    per: str = "row"
    """Unit of a decision: ``row``, ``label`` of a row, ``word`` or ``question``."""
    thresholds: dict[str, float] | None = None
    f1_macro: dict[str, float] | None = None
    """Macro F1 of rows with several labels: ``before`` at 0.5, ``after`` at thresholds tuned on other rows."""
    abstention: list[dict[str, Any]] = field(default_factory=list)
    """Requested precisions (``asked``) with ``threshold``, ``coverage`` and ``precision``.

    These three are absent if no threshold reaches the precision. Typed questions have entries per ``type``."""
    risk_coverage: list[dict[str, float]] = field(default_factory=list)
    prediction_sets: list[dict[str, Any]] = field(default_factory=list)
    """Requested coverages (``asked``) with the results of `bertkit.metrics.calibration.measure_prediction_sets`."""
    training_rows: int = 0


def calibrate(
    recipe: Recipe,
    *,
    split: str | None = None,
    coverages: Sequence[float] = (),
    precision: float | None = None,
    on_overlap: OnOverlap = "error",
) -> CalibrationResult:
    """Calibrate the checkpoint or the folder of seeds `recipe.model` on the first validation split, or on `split`.

    A page next to calibration.json shows the result.

    Args:
        recipe: Recipe of the checkpoint.
        split: Split with labeled rows; by default the first validation split.
        coverages: Fractions of rows whose prediction set must contain the gold label; each is measured.
        precision: Minimum precision; later, `predict` abstains from rows below the threshold that reaches it.
        on_overlap: Treatment of rows that the checkpoint was trained on; see `resolve_overlap`.

    Raises:
        UsageError: If the task has no probabilities, the checkpoint is not in a folder, there are too few rows, or a
            coverage or precision is not between 0 and 1.
        BertkitError: If the checkpoint or the rows cannot be read; see `bertkit.errors`.
    """
    # 1. Check the options and the checkpoint, and read the rows.
    for coverage in coverages:
        check_fraction("--coverage", coverage)
    check_fraction("--min-precision", precision)
    with stage("reading the data", total=1):
        info = find_members(recipe)
        columns, get_decisions = info.task.COLUMNS, info.task.gold_probabilities
        if get_decisions is None:
            raise UsageError(f"{recipe.task} has no probabilities of labels to calibrate", "")
        if coverages or precision:
            _check_single_label(info)
        if not Path(recipe.model).is_dir():
            message = f"{recipe.model} is not a folder, and a calibration is stored next to the weights"
            raise UsageError(message, f"hf download {recipe.model} --local-dir DIR, then --model DIR")
        rows = next(iter(resolve_overlap(info, splits_to_score(info, split), on_overlap).values()))
        # Repeated rows add no information, so count only different inputs.
        digests = digest_rows(rows.rows, columns.gold)
        count = len(np.unique(digests))
        if count < _MIN_ROWS:
            noun = "rows" if count == len(rows.rows) else "different rows"
            raise UsageError(f"{count} {noun} are too few to calibrate on", f"give at least {_MIN_ROWS}")

    with lock_output(info.calibration_folder / CALIBRATION_FILE):
        # 2. Predict without the calibration that the checkpoint may already have.
        with stage(f"loading {recipe.model_name}"):
            checkpoint = info.load(inference=True, calibrated=False)
        output = score_split(checkpoint, rows)
        labels = output.context.labels
        decisions = get_decisions(output.predictions, rows.rows, output.context)
        # The shape of `raw` is (decisions, labels), and of `gold`, `row_indices` and `types` (decisions,). A row with
        # several labels, words or questions has several decisions.
        raw, gold, row_indices, unit, types = decisions

        # 3. Fit a temperature to all rows, for later predictions. Measure its effect by cross-validation: each fold
        #    gets the temperature of the other folds, and rows with the same input are in one fold.
        groups = digests[row_indices]
        folds = metrics.fit_folds(decisions, groups, len(labels))
        temperature = metrics.fit_temperatures(decisions)
        probabilities = metrics.temper_decisions(decisions, temperature)
        held_out_probabilities = metrics.temper_folds(decisions, folds)
        is_right = probabilities.argmax(axis=1) == gold
        thresholds, f1 = None, None
        # Tasks that decide each label separately get one threshold per label, if F1 rises on the held-out folds.
        if unit == "label":
            f1 = _compare_f1(held_out_probabilities[:, 1], gold, folds)
            if f1["after"] > f1["before"]:
                label_thresholds = metrics.tune_thresholds(probabilities[:, 1], gold, len(labels))
                thresholds = dict(zip(labels, label_thresholds, strict=True))

        # 4. Write calibration.json. From the confidence and correctness of all independent decisions, later commands
        #    compute the threshold for any precision or coverage.
        independent = np.concatenate([np.array([], dtype=int), *decisions.by_type().values()])
        calibration = SavedCalibration(
            model=fingerprint_all(info.folder, info.member_folders),
            task=info.recipe.task,
            split=rows.name,
            source=rows.source,
            rows=len(rows.rows),
            temperature=temperature,
            thresholds=thresholds,
            confidence=_join_numbers(probabilities[independent].max(axis=1)),
            types=" ".join(types[independent]) if types is not None else "",
            right=_join_numbers(is_right[independent].astype(int)),
            gold=_join_numbers(probabilities[independent, gold[independent]]),
            folds=[_describe_fold(fold, groups, labels if thresholds else ()) for fold in folds],
        )
        if precision is not None:
            calibration = replace(calibration, promised=choose_thresholds(calibration, info.recipe, precision, None))
        write_calibration(info.calibration_folder, calibration)
        # transformers reads the temperatures of typed questions from another file, which folders of seeds lack.
        if (info.calibration_folder / DECISION_FILE).is_file():
            from bertkit.evaluation.decisions import write_decision_config

            active_temperature = info.recipe.options.get("temperature", temperature)
            write_decision_config(info.folder, with_options(output.context, {"temperature": active_temperature}))

        # 5. Measure the effect, and write the page.
        from bertkit.reports.confidence import write_calibration_page

        result = CalibrationResult(
            model=info.recipe.model,
            split=rows.name,
            source=rows.source,
            rows=len(rows.rows),
            temperature=temperature,
            before=reliability.describe_calibration(raw, gold, row_indices),
            after=reliability.describe_calibration(held_out_probabilities, gold, row_indices),
            file=str(info.calibration_folder / CALIBRATION_FILE),
            decisions=len(gold),
            per=unit,
            thresholds=thresholds,
            f1_macro=f1,
            **_measure_by_type(decisions, probabilities, groups, coverages),
            training_rows=len(rows.training_rows),
        )
        confidence = {"before": raw.max(axis=1), "after": held_out_probabilities.max(axis=1)}
        write_calibration_page(info.calibration_folder, asdict(result), confidence, is_right.astype(int))
        return result


def _measure_by_type(
    decisions: Decisions, probabilities: np.ndarray, groups: np.ndarray, coverages: Sequence[float]
) -> dict[str, Any]:
    """Find the threshold of each precision, and measure prediction sets, separately per type of decision.

    ``risk_coverage``, the precision at each level of coverage, is over all types.

    Args:
        decisions: Decisions with the probabilities before calibration.
        probabilities: Calibrated probabilities. Shape: (decisions, labels).
        groups: Group of each decision; a group is in one fold. Shape: (decisions,).
        coverages: Coverages of the prediction sets.
    """
    confidence = probabilities.max(axis=1)
    is_right = probabilities.argmax(axis=1) == decisions.gold
    by_type = decisions.by_type()
    tables: dict[str, list[dict[str, Any]]] = {"abstention": [], "prediction_sets": [], "risk_coverage": []}
    for name, indices in by_type.items():
        selected, type_field = decisions.select(indices), {"type": name} if name else {}
        for precision in _PRECISIONS:
            point = metrics.find_abstention(confidence[indices], is_right[indices], precision)
            tables["abstention"].append({**type_field, "asked": precision, **(point._asdict() if point else {})})
        for coverage in coverages:
            sets = metrics.measure_prediction_sets(selected.probabilities, selected.gold, groups[indices], coverage)
            tables["prediction_sets"].append({**type_field, "asked": coverage, **sets})
    if by_type:
        independent = np.concatenate(list(by_type.values()))
        for level in metrics.risk_coverage(confidence[independent], is_right[independent]):
            tables["risk_coverage"].append(dict(zip(("coverage", "precision", "threshold"), level, strict=True)))
    return tables


def _describe_fold(fold: Fold, digests: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    """Return the record of a fold from the digest of each decision's row, and the labels with thresholds."""
    thresholds = {"thresholds": dict(zip(labels, fold.thresholds, strict=True))} if labels else {}
    # With big-endian bytes, the text is the same on every machine.
    rows = np.unique(digests[fold.is_held_out]).astype(">u8").tobytes().hex()
    return {"rows": rows, "options": {"temperature": fold.temperature, **thresholds}}


def _join_numbers(values: np.ndarray) -> str:
    """Format numbers with seven digits, separated by spaces."""
    return " ".join(f"{value:.7g}" for value in values)


def _compare_f1(probabilities: np.ndarray, gold: np.ndarray, folds: Sequence[Fold]) -> dict[str, float]:
    """Compute macro F1 at 0.5, and at thresholds that were tuned on the rows of other folds.

    Args:
        probabilities: Held-out probability of each label of each row, row by row. Shape: (decisions,).
        gold: Whether a row has the label, 0 or 1. Shape: (decisions,).
        folds: Folds with their thresholds.
    """
    labels = len(folds[0].thresholds)
    is_predicted = np.zeros_like(gold, dtype=bool)
    for fold in folds:
        # A fold has all labels of its rows, so reshape its decisions to (rows of the fold, labels).
        is_above = probabilities[fold.is_held_out].reshape(-1, labels) >= np.array(fold.thresholds)
        is_predicted[fold.is_held_out] = is_above.ravel()
    is_above_half, is_gold = (probabilities >= 0.5).reshape(-1, labels), gold.reshape(-1, labels) == 1
    return {"before": f1_macro(is_gold, is_above_half), "after": f1_macro(is_gold, is_predicted.reshape(-1, labels))}


def with_thresholds(recipe: Recipe, *, precision: float | None, coverage: float | None) -> Recipe:
    """Return the recipe with the thresholds of its checkpoint's calibration for a precision or a coverage.

    Raises:
        BertkitError: If there is no such threshold; see `bertkit.evaluation.calibration.choose_thresholds`.
    """
    info = find_members(recipe)
    _check_single_label(info)
    options = choose_thresholds(info.read_calibration(), recipe, precision, coverage)
    return recipe.model_copy(update={"options": {**recipe.options, **options}})


def _check_single_label(info: CheckpointInfo) -> None:
    """Check that a checkpoint predicts one label per row, as abstention and prediction sets require.

    Raises:
        UsageError: If the task has no prediction sets, or several labels per row.
    """
    if "set_above" not in info.task.OPTIONS:
        message = f"--min-precision and --coverage are for one label per row, not for {info.recipe.task}"
        raise UsageError(message, "leave them out")
    if info.recipe.options.get("multi_label"):
        raise UsageError("--min-precision and --coverage are for one label per row, not for several", "leave them out")
