"""Answers to rows that are changed a little, and how many of them flip: the tests that every model can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.insight.mistakes.behavior import BehaviorResult, BehaviorTest, plan_test, run_plans
from bertkit.insight.mistakes.edits import EDITS
from bertkit.progress import SILENT, Progress
from bertkit.recipe import Recipe, Row

_SHOWN = 5  # rows of each change


@dataclass(frozen=True)
class Robustness:
    """What small changes did to the answers."""

    rows: int
    column: str
    """The input that was changed."""
    edits: list[BehaviorResult]
    left_out: list[str]
    """Changes that fit no row."""


def default_tests(allowed: float | None = None) -> list[BehaviorTest]:
    """Return an invariance per small change, each with the share of rows that may fail."""
    return [BehaviorTest(name=edit.name, change=edit.name, allowed=allowed) for edit in EDITS]


def measure_robustness(
    recipe: Recipe, rows: Sequence[Row], *, limit: int = 500, seed: int = 0, progress: Progress = SILENT
) -> Robustness:
    """Change the first input of rows in each way, predict them again, and count the answers that flip.

    An answer flips if it is another label, span or tag sequence, or a number that moves by more than a tenth of the
    range of all answers.

    Args:
        recipe: whose model is the run.
        rows: with canonical columns.
        limit: how many rows are changed, evenly chosen.
        seed: of the changes.
        progress: shows how far the work is.

    Raises:
        RecipeError: the rows have no text to change.
        BertkitError: the model cannot be loaded; see `bertkit.errors`.
    """
    saved = find_checkpoint(recipe)
    plans = [plan_test(test, rows, saved.task.COLUMNS, limit, seed) for test in default_tests()]
    results = [replace(one, trials=one.trials[:_SHOWN]) for one in run_plans(saved, plans, progress)]
    left_out = [plan.test.name for plan in plans if not plan.rows]
    return Robustness(min(limit, len(rows)), plans[0].column, results, left_out)
