"""Answers to rows that are changed a little, and how many of them flip: the tests that every model can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertkit.errors import UsageError, shorten
from bertkit.evaluation.checkpoint import find_checkpoint
from bertkit.insight.mistakes.behavior import BehaviorResult, BehaviorTest, plan_test, run_plans
from bertkit.insight.mistakes.edits import EDITS
from bertkit.recipe import Recipe, Row, write_yaml
from bertkit.storage.files import write_text
from bertkit.storage.outputs import claimed

_SHOWN = 5  # rows of each change
_WRITTEN = 50  # wrong rows in a file of tests


@dataclass(frozen=True)
class Robustness:
    """What small changes did to the answers.

    Args:
        rows: how many were changed in the way that fits most.
        column: the input that was changed.
        edits: what came of each change.
        left_out: changes that fit no row.
    """

    rows: int
    column: str
    edits: list[BehaviorResult]
    left_out: list[str]


def default_tests(allowed: float | None = None) -> list[BehaviorTest]:
    """Return an invariance per small change, each with the share of rows that may fail."""
    return [BehaviorTest(name=edit.name, change=edit.name, allowed=allowed) for edit in EDITS]


def measure_robustness(recipe: Recipe, rows: Sequence[Row], *, limit: int) -> Robustness:
    """Change the first input of rows in each way, predict them again, and count the answers that flip.

    An answer flips if it is another label, span or tag sequence, or a number that moves by more than a tenth of the
    range of all answers.

    Args:
        recipe: whose model is the run.
        rows: with canonical columns.
        limit: how many rows are changed in each way.

    Raises:
        RecipeError: the rows have no text to change.
        BertkitError: the model cannot be loaded; see `bertkit.errors`.
    """
    saved = find_checkpoint(recipe)
    plans = [plan_test(test, rows, saved.task.COLUMNS, limit) for test in default_tests()]
    results = [replace(result, trials=result.trials[:_SHOWN]) for result in run_plans(saved, plans)]
    left_out = [plan.test.name for plan in plans if not plan.rows]
    return Robustness(max((one.rows for one in results), default=0), plans[0].column, results, left_out)


def write_cases_file(file: Path, run: str, rows: Sequence[Row]) -> None:
    """Write a file of tests to start from: rows that a run got wrong, and small changes.

    Raises:
        UsageError: the file exists.
    """
    if file.exists():
        raise UsageError("it exists already, and is kept as it is", "name a new file", file=file)
    changes = [test for test in default_tests(0.1) if not test.find_edit().may_flip]
    wrong = {"name": shorten(f"wrong answers of {run}"), "rows": list(rows[:_WRITTEN]), "allowed": 1.0}
    tests = [wrong] if rows else []
    content = {"tests": tests + [{"name": one.name, "change": one.change, "allowed": one.allowed} for one in changes]}
    note = "`allowed` is the share of rows that may fail: lower it as the model gets them right"
    with claimed(file):
        write_text(file, write_yaml(content, comment=note))
