"""Test how a model behaves: rows that must have an answer, changes that must not matter, and changes that must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.data.files import read_records
from bertkit.data.labels import spelled, spelled_names
from bertkit.data.rows import read_split
from bertkit.errors import DataError, ResourceError, UsageError, closest, located
from bertkit.evaluation.checkpoint import SavedCheckpoint, open_trained
from bertkit.insight.behavior import (
    BehaviorResult,
    BehaviorTest,
    CaseFile,
    fill_template,
    plan_test,
    run_plans,
)
from bertkit.insight.edits import EDITS
from bertkit.progress import stage
from bertkit.recipe.sections import Row, typed_path
from bertkit.recipe.validation import describe
from bertkit.recipe.yaml import read_yaml
from bertkit.reports.cases import Case
from bertkit.workflows.errors import read_predictions


@dataclass(frozen=True)
class TestedBehavior:
    """What came of the tests of a model.

    Args:
        run: the model.
        recipe: its recipe.
        task: its task family.
        results: of each test.
        left_out: tests whose change fits no row.
        gates: whether no more rows of each test fail than it allows.
    """

    run: str
    recipe: str
    task: str
    results: list[BehaviorResult]
    left_out: list[str]
    gates: list[Case]


def run_tests(
    run: str, file: str | Path | None = None, *, recipe: str | None = None, split: str | None = None, limit: int = 500
) -> TestedBehavior:
    """Run the tests of a file on a model; without one, small changes are made and told, and none is judged.

    Args:
        run: run folder, or any fine-tuned checkpoint.
        file: YAML with tests; see `bertkit.insight.behavior.BehaviorTest`.
        recipe: of a checkpoint that is not of a run.
        split: whose stored rows are tested, where a test brings none.
        limit: rows of each test, evenly chosen.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    with stage("reading the tests", total=1):
        if file is None:
            tests = [BehaviorTest(name=edit.name, change=edit.name, allowed=None) for edit in EDITS]
        else:
            tests = read_tests(typed_path(file))
        saved = open_trained(run, recipe)
        of_run: Sequence[Row] = []
        # Stored rows are read only for tests that bring none of their own.
        if any(test.rows is None and test.template is None for test in tests):
            of_run = read_predictions(run, split)[2]
        plans = [
            plan_test(test, _read_rows(test, saved, file, limit) or of_run, saved.task.COLUMNS, limit) for test in tests
        ]
    results = run_plans(saved, plans)
    left_out = [plan.test.name for plan in plans if not plan.rows]
    gates = [result.judge() for result in results]
    gates += [Case("left out", name, "skipped", "no row can be changed so") for name in left_out]
    return TestedBehavior(run, saved.recipe.name, saved.recipe.task, results, left_out, gates)


def read_tests(file: Path) -> list[BehaviorTest]:
    """Read a file of tests; one without a name is called by what it does.

    Raises:
        ResourceError: there is no such file.
        RecipeError: it is not YAML, or a key or value of it is wrong.
    """
    from pydantic import ValidationError

    try:
        values, lines = read_yaml(file.read_text(encoding="utf-8"), file, "file of tests", CaseFile.EXAMPLE)
    except (OSError, UnicodeDecodeError):
        raise ResourceError("no file of tests", CaseFile.EXAMPLE, file=file) from None
    try:
        tests = CaseFile.model_validate(values).tests
    except ValidationError as error:
        raise describe(error.errors(), CaseFile, {}, file, lines) from None
    named = [
        test if test.name else test.model_copy(update={"name": f"{test.change or test.kind} {number}"})
        for number, test in enumerate(tests, start=1)
    ]
    names = [test.name for test in named]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two tests are called {twice!r}", "name each differently", file=file)
    return named


def _read_rows(test: BehaviorTest, saved: SavedCheckpoint, file: object, limit: int) -> Sequence[Row]:
    """Return the rows that a test brings, with canonical columns; none where it takes those of the run."""
    task, columns, recipe = saved.task, saved.task.COLUMNS, saved.recipe
    if isinstance(test.rows, str):
        # An invariance compares two answers, so its rows need no gold value.
        read = replace(columns, gold="") if test.change else columns
        records = read_records(test.rows, recipe.data)
        return read_split(test.name, records, recipe.data, read, lambda row: task.read(row, recipe), test.rows).rows
    raw_rows = test.rows or []
    if test.template is not None:
        raw_rows = fill_template(test, columns.text_instead.get(columns.given[0], columns.given[0]), limit)
    rows = []
    for number, row in enumerate(raw_rows, start=1):
        answered = row if test.answer is None else {**row, columns.gold: test.answer}
        with located(file=str(file), record=f"test {test.name!r}, row {number}"):
            rows.append(_check_row(answered, saved, needs_answer=not test.change))
    return rows


def _check_row(row: Mapping[str, Any], saved: SavedCheckpoint, *, needs_answer: bool) -> Row:
    """Return a row that a test writes out as the task family reads it.

    Raises:
        DataError: a column is missing or unknown, or the answer is none that the model can give.
    """
    columns, gold = saved.task.COLUMNS, saved.task.COLUMNS.gold
    for name in row:
        if name not in columns.names:
            raise DataError(f"no column is called {name!r}", closest(name, columns.names))
    for name in (*columns.given, *([gold] if needs_answer else [])):
        if name not in row and columns.text_instead.get(name) not in row:
            raise DataError(f"the row has no {name!r}", "write it, or an `answer` for all rows of the test")
    named = {gold: spelled(row[gold]) if not isinstance(row[gold], list) else row[gold]} if gold in row else {}
    read = saved.task.read({**row, **(named if saved.task.NAMED else {})}, saved.recipe)
    if read is None:
        raise DataError("the row has nothing to test", "leave it out")
    unknown = set(spelled_names(read[gold]) if saved.task.NAMED and gold in read else ()).difference(saved.labels)
    if unknown:
        raise DataError(f"{min(unknown)!r} is none of the labels", closest(min(unknown), saved.labels), column=gold)
    return read
