"""A model before and after pruning, on the same rows: size, speed, scores, and how they differ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from bertkit.data.rows import Split
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, open_checkpoint
from bertkit.evaluation.parity import compare_scored, measure_latency
from bertkit.evaluation.scoring import Scored, find_intervals, score_split
from bertkit.hardware.speed import Pace
from bertkit.metrics.intervals import Interval
from bertkit.metrics.paired import Difference
from bertkit.modeling.checkpoint import weight_bytes
from bertkit.progress import stage
from bertkit.storage.files import null_for_nan


@dataclass(frozen=True)
class PrunedSide:
    """A model before or after: its size, and on validation rows its speed (see `Pace`) and scores."""

    parameters: int
    disk_bytes: int
    row_seconds: float | None = None
    rows_per_second: float | None = None
    scores: dict[str, float | None] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    spread: float | None = None
    """By which share the slowest round of timing took longer than the fastest."""


@dataclass(frozen=True)
class ComparedSides:
    """Both models on the validation rows, before and after."""

    after: Checkpoint
    scored: tuple[Scored, Scored]
    paces: list[Pace]
    differences: dict[str, Difference]
    """Metric -> the score after, less the score before, on the same rows."""

    def describe(self, number: int, parameters: int, folder: Path) -> PrunedSide:
        """Return the figures of one of the models, whose weights are in a folder."""
        scored = self.scored[number]
        return PrunedSide(
            parameters=parameters,
            disk_bytes=weight_bytes(folder),
            **self.paces[number]._asdict(),
            scores=null_for_nan(scored.scores),
            intervals=find_intervals(self.after.task, scored).ends,
        )


def compare(saved: SavedCheckpoint, before: Checkpoint, folder: Path, validation: Split) -> ComparedSides:
    """Load a pruned model, score it and the one before on the same rows, and time both in turns.

    Args:
        saved: the checkpoint before.
        before: the same, loaded.
        folder: of the pruned one.
        validation: the rows.

    Raises:
        ModelError: the pruned model does not load.
    """
    pruned = open_checkpoint(saved.recipe.model_copy(update={"model": str(folder)}), saved.task, folder)
    after = pruned.load(before.machine, inference=True, calibrated=False)
    # both are scored with the options that were tuned for the first
    after = replace(after, setup=replace(before.setup, tokenizer=after.setup.tokenizer))
    first, second = (score_split(checkpoint, validation) for checkpoint in (before, after))
    paces = measure_latency([(before, first), (after, second)])
    with stage("comparing", total=1):
        differences = compare_scored(saved.task, first, second)
    return ComparedSides(after, (first, second), paces, differences)
