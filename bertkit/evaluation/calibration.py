"""Calibration of a checkpoint: a small file in the model folder that `eval` and `predict` apply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertkit.data.checks import format_fraction
from bertkit.data.rows import digest_rows
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.modeling.checkpoint import fingerprint
from bertkit.progress import log
from bertkit.recipe.records import Recipe
from bertkit.storage.fingerprints import json_fingerprint, read_with_checksum, write_with_checksum
from bertkit.tokens.features import Rows

CALIBRATION_FILE = "calibration.json"
DECISION_FILE = "decision.json"
"""Settings of typed questions for transformers, with their temperatures."""
_REMEDY = "run `bertkit calibrate` again, or delete it"


@dataclass(frozen=True)
class SavedCalibration:
    """Calibration of a model's probabilities, fitted on the rows of one split."""

    model: str
    """SHA-256 of config, weights and vocabulary; for an ensemble, computed over all members."""
    task: str
    split: str
    source: str
    rows: int
    temperature: float | dict[str, float]
    """One temperature for all decisions, or one per type of question."""
    thresholds: dict[str, float] | None = None
    """Label -> minimum probability that selects it, if a row may have several labels."""
    confidence: str = ""
    """Probability of the selected label in each row, separated by spaces; empty if rows have several labels.

    For typed questions, there is one probability per row and question type.
    """
    types: str = ""
    """Question type of each probability; empty without types."""
    right: str = ""
    """Name of the array with 1 for each selected label that is correct, and 0 for the others."""
    gold: str = ""
    """Probability of each gold label."""
    folds: list[dict[str, Any]] = field(default_factory=list)
    """Folds with the digests of their ``rows``, 16 digits each, and the ``options`` fitted to the other folds.

    Digests are stored as text, because separate objects take several times the memory. A calibration on the Hub has no
    folds.
    """

    promised: dict[str, Any] = field(default_factory=dict)
    """Recipe options that give answers the precision requested from `bertkit calibrate`."""

    def options(self) -> dict[str, Any]:
        """Return the recipe options that apply the fitted values."""
        return {"temperature": self.temperature} | ({"thresholds": self.thresholds} if self.thresholds else {})

    def describe(self) -> str:
        """Return the temperature and the thresholds in one line."""
        from bertkit.metrics.calibration import describe_temperature

        temperature = describe_temperature(self.temperature)
        text = f"calibrated on {self.split} ({self.rows:,} rows): temperature {temperature}"
        threshold_texts = ", ".join(f"{name} {value:.4g}" for name, value in (self.thresholds or {}).items())
        return f"{text}; thresholds {threshold_texts}" if threshold_texts else text


def write_calibration(folder: Path, calibration: SavedCalibration) -> None:
    """Write a calibration into the folder of its model."""
    write_with_checksum(folder / CALIBRATION_FILE, asdict(calibration))


def fingerprint_all(folder: Path, members: Sequence[Path] = ()) -> str:
    """Compute the fingerprint of the model in a folder, or of an ensemble if it has members."""
    return json_fingerprint([fingerprint(member) for member in members]) if members else fingerprint(folder)


def read_calibration(folder: Path, task: str, members: Sequence[Path] = ()) -> SavedCalibration | None:
    """Read the calibration of a model, or return None if it has none for this task family.

    Raises:
        ModelError: If the file is damaged, or does not match the weights.
    """
    file = folder / CALIBRATION_FILE
    content = read_with_checksum(file, ModelError("the calibration is damaged", _REMEDY, file=file))
    if content is None:
        return None
    calibration = SavedCalibration(**content)
    if calibration.model != fingerprint_all(folder, members):
        message = f"the calibration does not match the weights {'of the runs ' if members else ''}in this folder"
        raise ModelError(message, _REMEDY, file=file)
    return calibration if calibration.task == task else None


def find_calibration_rows(
    calibration: SavedCalibration, rows: Rows, gold: str, options: Mapping[str, Any]
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield, for each fold of a calibration, the indices of its rows and the options fitted to the other folds.

    Args:
        calibration: Calibration of the model.
        rows: Rows to score.
        gold: Column of gold answers.
        options: Recipe options in effect, which can differ from the calibration's.
    """
    import numpy as np

    digests = digest_rows(rows, gold)
    # An option that the user has overridden was not fitted to any row.
    active_options = [name for name, value in calibration.options().items() if options.get(name) == value]
    for fold in calibration.folds if active_options else []:
        # 16 hexadecimal digits are eight bytes, the highest first (">u8"). `digests` have the machine's byte order.
        fold_digests = np.frombuffer(bytes.fromhex("".join(fold["rows"])), dtype=">u8").astype(digests.dtype)
        indices = np.flatnonzero(np.isin(digests, fold_digests)).tolist()
        if indices:
            yield indices, {name: fold["options"][name] for name in active_options}


def warn_of_calibration_rows(calibration: SavedCalibration, num_fitted: int, num_rows: int) -> list[str]:
    """Return a warning that states how many of the scored rows the calibration was fitted to."""
    option_names = " and ".join(calibration.options())
    if not calibration.folds:
        return [
            "The calibration comes from the Hub and does not name the rows that it was fitted to. If these are among "
            f"them, scores that depend on its {option_names} are too high. Run `bertkit calibrate` to replace it."
        ]
    if not num_fitted:
        return []
    fraction = format_fraction(num_fitted, num_rows)
    return [
        f"The calibration in force ({option_names}) was fitted to {fraction} of these rows. Each is scored with the "
        "values fitted to the other folds (cross-fitting), as a new row would be."
    ]


def warn_of_tuned_options(option_names: Iterable[str]) -> list[str]:
    """Return a warning that lists the options that were tuned on the scored rows."""
    options = ", ".join(option_names)
    return [f"{options} was chosen on these rows: their scores and intervals are a little too high."] if options else []


def choose_thresholds(
    calibration: SavedCalibration | None, recipe: Recipe, precision: float | None, coverage: float | None
) -> dict[str, Any]:
    """Return the options that give answers a precision, or prediction sets a coverage, and log their thresholds.

    Raises:
        UsageError: If `precision` or `coverage` is not between 0 and 1, or there is no calibration.
        DataError: If the calibration rows do not show the precision.
    """
    import numpy as np

    from bertkit.metrics.calibration import find_abstention, find_set_threshold

    for name, value in (("--min-precision", precision), ("--coverage", coverage)):
        check_fraction(name, value)
    if calibration is None or not calibration.confidence:
        message = f"{recipe.model} has no calibration of one label per row, which --min-precision and --coverage need"
        raise UsageError(message, f"bertkit calibrate {recipe.name} --model {recipe.model}")
    saved_values = (calibration.confidence, calibration.right, calibration.gold)
    confidence, correct, gold = (np.fromstring(values, sep=" ") for values in saved_values)
    types = np.array(calibration.types.split() or [""] * len(confidence))
    options: dict[str, Any] = {"abstain_below": {}, "set_above": {}}
    messages = []
    for name in np.unique(types).tolist():
        has_type, suffix = types == name, f" of {name}" if name else ""
        rows = f"{has_type.sum():,} {name} answers" if name else f"{calibration.rows:,} rows"
        decision = None if precision is None else find_abstention(confidence[has_type], correct[has_type], precision)
        if decision is not None:
            options["abstain_below"][name] = decision.threshold
            messages.append(
                f"precision {precision:g}{suffix} with 95% confidence: abstains below "
                f"{decision.threshold:.4f}; {decision.coverage:.1%} of the {rows} remain, "
                f"and {decision.precision:.1%} of these are correct"
            )
        elif precision is not None:
            messages.append(f"precision {precision:g}{suffix} is not reached: abstains from all {rows}")
        if coverage is not None:
            options["set_above"][name] = lowest = find_set_threshold(gold[has_type], coverage)
            messages.append(
                f"coverage {coverage:g}{suffix}: prediction_set has each label of probability {lowest:.4f} or more"
            )
    if precision is not None and not options["abstain_below"]:
        message = f"no threshold has shown a precision of {precision:g} on the {calibration.rows:,} rows"
        remedy = "calibrate on more rows, lower --min-precision, or set an unverified threshold: --abstain-below 0.8"
        raise DataError(message, remedy, file=calibration.source)
    for message in messages:
        log.info(message)
    # Without types, the option is a number, not a dictionary with the single key "".
    return {name: by_type.get("", by_type) for name, by_type in options.items() if by_type}


def check_fraction(name: str, value: float | None) -> None:
    """Check that the value of an option, if given, is between 0 and 1.

    Raises:
        UsageError: If it is not.
    """
    if value is not None and not 0 < value < 1:
        raise UsageError(f"{name} must be between 0 and 1, got {value:g}", "choose a fraction such as 0.95")
