"""Baselines of a run: learned from its training rows, kept in its folder, and scored wherever its model is."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.evaluation.checkpoint import SavedCheckpoint
from bertkit.evaluation.scoring import Scored
from bertkit.metrics.baselines import Baselines, find_unbeaten
from bertkit.recipe import Row
from bertkit.storage.files import to_json, write_json
from bertkit.storage.fingerprints import json_fingerprint
from bertkit.tasks import Task
from bertkit.tokens.features import Setup

log = logging.getLogger("bertkit")

BASELINES_FILE = "baselines.json"


@dataclass(frozen=True)
class ScoredBaselines:
    """What the baselines of a run have learned, and their scores."""

    learned: Mapping[str, Any]
    scores: Mapping[str, dict[str, dict[str, float]]]
    """Split -> name of a baseline -> metric -> score."""


def fit_and_score(
    task: Task, training: Sequence[Row], splits: Mapping[str, Sequence[Row]], setup: Setup
) -> ScoredBaselines:
    """Fit the baselines of a task family to training rows, and score them on each split."""
    learned = json.loads(to_json(task.fit_baselines(training, setup)))  # as `eval` will read it
    return ScoredBaselines(
        learned, {name: score_baselines(task, learned, rows, setup) for name, rows in splits.items()}
    )


def score_baselines(
    task: Task, learned: Mapping[str, Any], rows: Sequence[Row], setup: Setup
) -> dict[str, dict[str, float]]:
    """Score each baseline on rows as a model is scored."""
    predicted = task.baselines(learned, rows, setup)
    return {name: task.score(task.compare(records, rows, setup), setup) for name, records in predicted.items()}


def write_learned(folder: Path, learned: Mapping[str, Any]) -> str:
    """Write what baselines have learned into the folder of a run, and return the checksum for its record."""
    write_json(folder / BASELINES_FILE, learned)
    return json_fingerprint(learned)


def read_learned(saved: SavedCheckpoint) -> Mapping[str, Any] | None:
    """Read what the baselines of a checkpoint's run have learned; None where that is unknown.

    The file stays behind where a model is published, since it has words of the training rows.
    """
    of_run = saved.record.get("identity", {}).get("recipe", {}).get("task")
    file = saved.folder / BASELINES_FILE
    if "baselines" not in saved.record or of_run != saved.recipe.task or not file.is_file():
        return None
    try:
        learned: Mapping[str, Any] | None = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        learned = None
    if learned is None or json_fingerprint(learned) != saved.record["baselines"]:
        log.info(f"warning: {file} is not as its run wrote it, so there are no baselines")
        return None
    return learned


def find_warnings(
    gold: Sequence[Any], scored: Scored, baselines: Baselines, metric: str, remedy: str = ""
) -> list[str]:
    """Say so where a model gives all rows one answer though gold values differ, or does not beat its baselines."""
    warnings = []
    answers = {str(prediction["prediction"]) for prediction in scored.predictions}
    if len(answers) == 1 and len(set(map(str, gold))) > 1:
        warnings.append(f"The model gives every row the same answer, {min(answers)!r}: it has learned nothing yet.")
    if unbeaten := find_unbeaten(scored.scores, baselines, metric):
        warnings.append(unbeaten + remedy)
    return warnings
