"""Test the behavior of a model: required answers, and edits of texts that must or must not change the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.analysis.behavior import BehaviorResult, BehaviorTest, CaseFile, fill_template, plan_test, run_plans
from bertkit.analysis.edits import EDITS
from bertkit.data.files import read_records
from bertkit.data.labels import label_to_str, labels_to_strs
from bertkit.data.rows import read_split
from bertkit.errors import DataError, ResourceError, UsageError, did_you_mean, error_location
from bertkit.evaluation.checkpoint import CheckpointInfo, open_trained
from bertkit.progress import stage
from bertkit.recipe.sections import Row, expand_path
from bertkit.recipe.validation import build_recipe_error
from bertkit.recipe.yaml import read_yaml
from bertkit.reports.cases import Case
from bertkit.workflows.errors import read_predictions


@dataclass(frozen=True)
class BehaviorReport:
    """Results of all tests of a model."""

    run: str
    recipe: str
    task: str
    results: list[BehaviorResult]
    left_out: list[str]
    """Names of tests whose change applies to no row."""
    gates: list[Case]
    """One case per test, which passes if no more rows fail than the test allows."""


def run_tests(
    run: str, file: str | Path | None = None, *, recipe: str | None = None, split: str | None = None, limit: int = 500
) -> BehaviorReport:
    """Run the tests of a file on a model.

    Without a file, all built-in edits of texts are tried, and changed answers are counted without a limit.

    Args:
        run: Run folder, or any fine-tuned checkpoint.
        file: YAML with tests; see `bertkit.analysis.behavior.BehaviorTest`.
        recipe: Recipe of a checkpoint that is not a run.
        split: Split whose stored rows are tested, for tests without rows.
        limit: Maximum rows per test, evenly chosen.

    Raises:
        BertkitError: If a test, a row or the model is wrong; see `bertkit.errors`.
    """
    # 1. Read the tests and their rows.
    with stage("reading the tests", total=1):
        if file is None:
            tests = [BehaviorTest(name=name, change=name, allowed=None) for name in EDITS]
        else:
            tests = read_tests(expand_path(file))
        info = open_trained(run, recipe)
        stored_rows: Sequence[Row] = []
        # Read the stored rows of the run only if a test needs them, because a plain checkpoint has none.
        if any(test.rows is None and test.template is None for test in tests):
            stored_rows = read_predictions(run, split)[2]
        test_rows = [_read_rows(test, info, file, limit) or stored_rows for test in tests]
        columns = info.task.COLUMNS
        plans = [plan_test(test, rows, columns, limit) for test, rows in zip(tests, test_rows, strict=True)]

    # 2. Predict the rows of all tests with one model, and judge the answers.
    results = run_plans(info, plans)
    skipped_tests = [plan.test.name for plan in plans if not plan.rows]
    gates = [result.judge() for result in results]
    gates += [Case("left out", name, "skipped", "the change applies to no row") for name in skipped_tests]
    return BehaviorReport(run, info.recipe.name, info.recipe.task, results, skipped_tests, gates)


def read_tests(file: Path) -> list[BehaviorTest]:
    """Read a test file; a test without a name is named after its change or its kind.

    Raises:
        ResourceError: If the file cannot be read.
        RecipeError: If it is not YAML, or has a wrong key or value.
        UsageError: If two tests have the same name.
    """
    from pydantic import ValidationError

    try:
        values, lines = read_yaml(file.read_text(encoding="utf-8"), file, "file of tests", CaseFile.EXAMPLE)
    except (OSError, UnicodeDecodeError):
        raise ResourceError("no file of tests", CaseFile.EXAMPLE, file=file) from None
    try:
        tests = CaseFile.model_validate(values).tests
    except ValidationError as error:
        raise build_recipe_error(error.errors(), CaseFile, {}, file, lines) from None
    named_tests, names = [], set[str]()
    for index, test in enumerate(tests, start=1):
        name = test.name or f"{test.change or test.kind} {index}"
        if name in names:
            raise UsageError(f"two tests are called {name!r}", "give each a different name", file=file)
        names.add(name)
        named_tests.append(test.model_copy(update={"name": name}))
    return named_tests


def _read_rows(test: BehaviorTest, info: CheckpointInfo, file: object, limit: int) -> Sequence[Row]:
    """Return the rows of a test with canonical columns, or an empty list if the test has no rows."""
    task, columns, recipe = info.task, info.task.COLUMNS, info.recipe
    if isinstance(test.rows, str):
        # A test with a change compares two answers, so its rows need no gold value.
        read_columns = replace(columns, gold="") if test.change else columns
        records = read_records(test.rows, recipe.data)
        return read_split(
            test.name, records, recipe.data, read_columns, lambda row: task.read(row, recipe), test.rows
        ).rows
    raw_rows = test.rows or []
    if test.template is not None:
        raw_rows = fill_template(test, columns.fallback_columns.get(columns.inputs[0], columns.inputs[0]), limit)
    rows = []
    for index, row in enumerate(raw_rows, start=1):
        row_with_answer = row if test.answer is None else {**row, columns.gold: test.answer}
        with error_location(file=str(file), record=f"test {test.name!r}, row {index}"):
            rows.append(_check_row(row_with_answer, info, needs_answer=not test.change))
    return rows


def _check_row(row: Mapping[str, Any], info: CheckpointInfo, *, needs_answer: bool) -> Row:
    """Return a row of a test file as the task family reads it.

    Raises:
        DataError: If a column is missing or unknown, or the answer is not one of the model's labels.
    """
    task, columns, gold = info.task, info.task.COLUMNS, info.task.COLUMNS.gold
    for name in row:
        if name not in columns.names:
            raise DataError(f"no column is called {name!r}", did_you_mean(name, columns.names))
    for name in (*columns.inputs, *([gold] if needs_answer else [])):
        if name not in row and columns.fallback_columns.get(name) not in row:
            raise DataError(f"the row has no {name!r}", "write it, or an `answer` for all rows of the test")
    # YAML reads labels such as 1 or true as a number or a boolean.
    if task.HAS_LABEL_NAMES and gold in row and not isinstance(row[gold], list):
        row = {**row, gold: label_to_str(row[gold])}
    read_row = task.read(dict(row), info.recipe)
    if read_row is None:
        raise DataError("the row has nothing to test", "leave it out")
    labels = labels_to_strs(read_row[gold]) if task.HAS_LABEL_NAMES and gold in read_row else ()
    if unknown_labels := set(labels).difference(info.labels):
        label = min(unknown_labels)
        raise DataError(f"{label!r} is not one of the labels", did_you_mean(label, info.labels), column=gold)
    return read_row
