"""`bertkit test`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import (
    CheckpointRecipeOption,
    PredictionsSplitOption,
    ReportOption,
    TrainedArgument,
    argument,
    option,
)
from bertkit.cli.output import print_notes, print_table, print_text, print_with_gates

if TYPE_CHECKING:
    from bertkit.workflows.test import BehaviorReport

ORDER = 22
EXAMPLE = "bertkit test runs/cola cases.yaml --report tests.xml"


def command(
    run: TrainedArgument,
    cases: Annotated[
        Path | None,
        argument("YAML file with tests; without it, effects of small text changes are counted.", "CASES"),
    ] = None,
    limit: Annotated[int, option("Maximum rows per test.", "N", min=1)] = 500,
    split: PredictionsSplitOption = None,
    recipe: CheckpointRecipeOption = None,
    report: ReportOption = None,
) -> None:
    """Test a model's behavior: required answers, and changes that must or must not matter (CheckList).

    A test has its own rows, rows from templates, or the rows that the run was scored on. The exit code is 8 if more
    rows of a test fail than the test allows.
    """
    from bertkit.workflows.test import run_tests

    behavior = run_tests(run, cases, recipe=recipe, split=split, limit=limit)
    if report is not None:
        from bertkit.reports.cases import write_cases

        # JUnit has a case per row, so that CI shows the failed rows; a summary for a pull request has a line per test.
        cases_by_row = [case for result in behavior.results for case in result.list_cases()]
        write_cases(
            report, f"behavior of {behavior.run}", cases_by_row if report.suffix.lower() == ".xml" else behavior.gates
        )
    print_with_gates(behavior, _print_tested, behavior.gates if cases else [])


def _print_tested(behavior: BehaviorReport) -> None:
    print_text(f"{behavior.run}, {behavior.recipe}")
    table = [
        {
            "test": result.name,
            "kind": result.kind,
            "rows": result.rows,
            "fail": result.failed,
            "share": f"{result.share:.1%}",
            "95% CI": result.interval,
            "allowed": "" if result.allowed is None else f"{result.allowed:.1%}",
        }
        for result in behavior.results
    ]
    print_table("rows that fail", table)
    for result in behavior.results:
        for trial in result.trials[: min(result.failed, 2)]:
            print_text(f"    {result.name}: {trial.describe()}")
    print_notes([f"no row can be changed by: {', '.join(behavior.left_out)}"] if behavior.left_out else [])
