"""The calibration of a checkpoint: a small file beside its weights, which `eval` and `predict` apply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertkit.data.checks import share_of
from bertkit.data.rows import digest_rows
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.modeling.checkpoint import fingerprint
from bertkit.progress import log
from bertkit.recipe.records import Recipe
from bertkit.storage.fingerprints import json_fingerprint, read_signed, write_signed
from bertkit.tokens.features import Rows

CALIBRATION_FILE = "calibration.json"
_AGAIN = "run `bertkit calibrate` again, or delete it"


@dataclass(frozen=True)
class SavedCalibration:
    """What was learned on the rows of a split about the probabilities of a model."""

    model: str
    """SHA-256 of config, weights and vocabulary; of an ensemble, of those of its members."""
    task: str
    split: str
    source: str
    rows: int
    temperature: float | dict[str, float]
    """For all, or for each type of question."""
    thresholds: dict[str, float] | None = None
    """Where a row may have several labels: label -> the least probability that chooses it."""
    confidence: str = ""
    """Where a row has one label, of each row: the probability of the label that was chosen, as one text of numbers.

    Of typed questions, of one question per row and type."""
    types: str = ""
    """The type of each of these, if they have some."""
    right: str = ""
    gold: str = ""
    """The probability of the gold label."""
    folds: list[dict[str, Any]] = field(default_factory=list)
    """Digests of the ``rows`` of each fold, 16 digits each, and ``options`` fitted to the others.

    All of these are texts, since as many objects take several times the memory. A calibration on the Hub has no folds.
    """

    promised: dict[str, Any] = field(default_factory=dict)
    """The options of a recipe by which answers have the precision that `bertkit calibrate` was asked for."""

    def options(self) -> dict[str, Any]:
        """Return the options of a recipe that apply what was fitted."""
        return {"temperature": self.temperature} | ({"thresholds": self.thresholds} if self.thresholds else {})

    def describe(self) -> str:
        """Say in a line what is in force."""
        from bertkit.metrics.calibration import describe_temperature

        temperature = describe_temperature(self.temperature)
        in_force = f"calibrated on {self.split} ({self.rows:,} rows): temperature {temperature}"
        shown = ", ".join(f"{name} {value:.4g}" for name, value in (self.thresholds or {}).items())
        return f"{in_force}; thresholds {shown}" if shown else in_force


def write_calibration(folder: Path, calibration: SavedCalibration) -> None:
    """Write the file into the folder of a model."""
    write_signed(folder / CALIBRATION_FILE, asdict(calibration))


def fingerprint_all(folder: Path, members: Sequence[Path] = ()) -> str:
    """Compute the fingerprint of the model of a folder, or of an ensemble of the models of several."""
    return json_fingerprint([fingerprint(member) for member in members]) if members else fingerprint(folder)


def read_calibration(folder: Path, task: str, members: Sequence[Path] = ()) -> SavedCalibration | None:
    """Read the calibration of a model, or of an ensemble; None where it has none for this task family.

    Raises:
        ModelError: the file is damaged, or of other weights.
    """
    file = folder / CALIBRATION_FILE
    content = read_signed(file, ModelError("the calibration is damaged", _AGAIN, file=file))
    if content is None:
        return None
    calibration = SavedCalibration(**content)
    if calibration.model != fingerprint_all(folder, members):
        what = f"the calibration is of other weights than those {'of the runs ' if members else ''}beside it"
        raise ModelError(what, _AGAIN, file=file)
    return calibration if calibration.task == task else None


def find_calibration_rows(
    calibration: SavedCalibration, rows: Rows, gold: str, options: Mapping[str, Any]
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield the indices of the rows that are in a fold of a calibration, with the options fitted to the other folds.

    Args:
        calibration: that of the model.
        rows: those to score.
        gold: the column of gold answers.
        options: those in force, which may be others than the calibration's.
    """
    import numpy as np

    digests = digest_rows(rows, gold)
    in_force = [name for name, value in calibration.options().items() if options.get(name) == value]
    for fold in calibration.folds if in_force else []:
        of_fold = np.frombuffer(bytes.fromhex("".join(fold["rows"])), dtype=">u8").astype(digests.dtype)
        indices = np.flatnonzero(np.isin(digests, of_fold)).tolist()
        if indices:
            yield indices, {name: fold["options"][name] for name in in_force}


def warn_of_calibration_rows(calibration: SavedCalibration, count: int, rows: int) -> list[str]:
    """Say how many of the rows to score a calibration was fitted to, and how these are scored."""
    what = " and ".join(calibration.options())
    if not calibration.folds:
        return [
            "The calibration comes from the Hub and does not name the rows that it was fitted to: if these are among "
            f"them, scores that depend on its {what} are too high. Run `bertkit calibrate` again to know."
        ]
    if not count:
        return []
    return [
        f"The calibration in force ({what}) was fitted to {share_of(count, rows)} of these rows. Each of them is "
        "scored with what was fitted to the other folds (cross-fitting), as a new row would be."
    ]


def warn_of_tuned(names: Iterable[str]) -> list[str]:
    """Say which options were chosen on the rows that are scored."""
    listed = ", ".join(names)
    return [f"{listed} was chosen on these rows: their scores and intervals are a little too high."] if listed else []


def thresholds_for(
    calibration: SavedCalibration | None, recipe: Recipe, precision: float | None, coverage: float | None
) -> dict[str, Any]:
    """Return the options that give answers a precision, or prediction sets a coverage, and log what they promise.

    Raises:
        UsageError: If a number is not between 0 and 1, or there is no calibration.
        DataError: If too few rows show such a precision.
    """
    import numpy as np

    from bertkit.metrics.calibration import find_abstention, set_threshold

    for name, value in (("--precision", precision), ("--coverage", coverage)):
        check_share(name, value)
    if calibration is None or not calibration.confidence:
        what = f"{recipe.model} has no calibration of one label per row, which --precision and --coverage need"
        raise UsageError(what, f"bertkit calibrate {recipe.name} --model {recipe.model}")
    kept = (calibration.confidence, calibration.right, calibration.gold)
    confidence, right, gold = (np.fromstring(values, sep=" ") for values in kept)
    types = np.array(calibration.types.split() or [""] * len(confidence))
    options: dict[str, Any] = {"abstain_below": {}, "set_above": {}}
    lines = []
    for name in np.unique(types).tolist():
        is_of, of_type = types == name, f" of {name}" if name else ""
        rows = f"{is_of.sum():,} {name} answers" if name else f"{calibration.rows:,} rows"
        decision = None if precision is None else find_abstention(confidence[is_of], right[is_of], precision)
        if decision is not None:
            options["abstain_below"][name] = decision.threshold
            lines.append(
                f"precision {precision:g}{of_type}, shown with 95% confidence: abstains below "
                f"{decision.threshold:.4f}; of the {rows}, {decision.coverage:.1%} are answered, "
                f"{decision.precision:.1%} of these right"
            )
        elif precision is not None:
            lines.append(f"precision {precision:g}{of_type} is not shown on the {rows}: abstains from all of them")
        if coverage is not None:
            options["set_above"][name] = least = set_threshold(gold[is_of], coverage)
            lines.append(
                f"coverage {coverage:g}{of_type}: prediction_set has each label of probability {least:.4f} or more"
            )
    if precision is not None and not options["abstain_below"]:
        what = f"no threshold has shown a precision of {precision:g} on the {calibration.rows:,} rows"
        hint = "calibrate on more rows, ask for less, or set a threshold without a promise: --abstain-below 0.8"
        raise DataError(what, hint, file=calibration.source)
    for line in lines:
        log.info(line)
    return {name: by_type.get("", by_type) for name, by_type in options.items() if by_type}


def check_share(name: str, value: float | None) -> None:
    """Check that the number of an option, where it is given, is between 0 and 1.

    Raises:
        UsageError: it is not.
    """
    if value is not None and not 0 < value < 1:
        raise UsageError(f"{name} {value:g} is no share", "give a number between 0 and 1, such as 0.95")
