"""The calibration of a checkpoint: a small file beside its weights, which `eval` and `predict` apply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.modeling.load import fingerprint
from bertkit.recipe import Recipe
from bertkit.storage.files import write_json
from bertkit.storage.fingerprints import json_fingerprint

CALIBRATION_FILE = "calibration.json"


@dataclass(frozen=True)
class SavedCalibration:
    """What was learned on the rows of a split about the probabilities of a model."""

    model: str
    """SHA-256 of config, weights and vocabulary; of an ensemble, of those of its members."""
    task: str
    split: str
    source: str
    rows: int
    temperature: float
    thresholds: dict[str, float] | None = None
    """Where a row may have several labels: label -> the least probability that chooses it."""
    confidence: list[float] = field(default_factory=list)
    """Where a row has one label, of each row: the probability of the label that was chosen."""
    right: list[int] = field(default_factory=list)
    gold: list[float] = field(default_factory=list)
    """The probability of the gold label."""

    def options(self) -> dict[str, Any]:
        """Return the options of a recipe that apply it."""
        return {"temperature": self.temperature} | ({"thresholds": self.thresholds} if self.thresholds else {})

    def describe(self) -> str:
        """Say in a line what is in force."""
        found = f"calibrated on {self.split} ({self.rows:,} rows): temperature {self.temperature:.4g}"
        shown = ", ".join(f"{name} {value:.4g}" for name, value in (self.thresholds or {}).items())
        return f"{found}; thresholds {shown}" if shown else found


def write_calibration(folder: Path, calibration: SavedCalibration) -> None:
    """Write the file into the folder of a model."""
    write_json(folder / CALIBRATION_FILE, asdict(calibration))


def fingerprint_all(folder: Path, members: Sequence[Path] = ()) -> str:
    """Compute the fingerprint of the model of a folder, or of an ensemble of the models of several."""
    return json_fingerprint([fingerprint(member) for member in members]) if members else fingerprint(folder)


def read_calibration(folder: Path, task: str, members: Sequence[Path] = ()) -> SavedCalibration | None:
    """Read the calibration of a model, or of an ensemble; None where it has none for this task family.

    Raises:
        ModelError: the file is damaged, or of other weights.
    """
    file = folder / CALIBRATION_FILE
    if not file.is_file():
        return None
    try:
        calibration = SavedCalibration(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise ModelError(
            "the calibration is damaged", "run `bertkit calibrate` again, or delete it", file=file
        ) from None
    if calibration.model != fingerprint_all(folder, members):
        what = f"the calibration is of other weights than those {'of the runs ' if members else ''}beside it"
        raise ModelError(what, "run `bertkit calibrate` again, or delete it", file=file)
    return calibration if calibration.task == task else None


def thresholds_for(
    calibration: SavedCalibration | None, recipe: Recipe, precision: float | None, coverage: float | None
) -> tuple[dict[str, Any], list[str]]:
    """Find the options that give answers a precision, or prediction sets a coverage, and a line that describes each.

    Raises:
        UsageError: a number that is no share, or no calibration.
        DataError: too few rows to show such a precision.
    """
    from bertkit.metrics.calibration import find_abstention, set_threshold

    for name, value in (("--precision", precision), ("--coverage", coverage)):
        check_share(name, value)
    if calibration is None or not calibration.confidence:
        what = f"{recipe.model} has no calibration of one label per row, which --precision and --coverage need"
        raise UsageError(what, f"bertkit calibrate {recipe.name} --model {recipe.model}")
    options: dict[str, Any] = {}
    lines = []
    confidence, right, gold = _arrays(calibration.confidence, calibration.right, calibration.gold)
    if precision is not None:
        found = find_abstention(confidence, right, precision)
        if found is None:
            what = f"no threshold has shown a precision of {precision:g} on the {calibration.rows:,} rows"
            raise DataError(what, "calibrate on more rows, or ask for less", file=calibration.source)
        options["abstain_below"] = found.threshold
        lines.append(
            f"precision {precision:g}, shown with 95% confidence: abstains below {found.threshold:.4f}; of the "
            f"{calibration.rows:,} rows, {found.coverage:.1%} are answered, {found.precision:.1%} of these right"
        )
    if coverage is not None:
        options["set_above"] = set_threshold(gold, coverage)
        lines.append(
            f"coverage {coverage:g}: prediction_set has each label of probability {options['set_above']:.4f} or more"
        )
    return options, lines


def check_share(name: str, value: float | None) -> None:
    """Check that the number of an option, where it is given, is between 0 and 1.

    Raises:
        UsageError: it is not.
    """
    if value is not None and not 0 < value < 1:
        raise UsageError(f"{name} {value:g} is no share", "give a number between 0 and 1, such as 0.95")


def _arrays(*values: Sequence[float] | Mapping[str, float]) -> list[Any]:
    import numpy as np

    return [np.array(value, dtype=np.float64) for value in values]
