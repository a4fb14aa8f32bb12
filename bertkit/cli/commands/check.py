"""`bertkit check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import (
    FROM_RECIPE,
    ROW_OPTIONS,
    RecipeArgument,
    ReportOption,
    ScoringSetOption,
    flag,
    option,
    recipe_options,
)
from bertkit.cli.output import print_line, print_notes, print_result, print_text
from bertkit.errors import shorten

if TYPE_CHECKING:
    from bertkit.checks import Finding
    from bertkit.reports.cases import Case, Outcome
    from bertkit.workflows.check import CheckResult

ORDER = 10
EXAMPLE = "bertkit check cola --model demo --data demo"

# Group of findings -> heading, in the order of the output.
_HEADINGS = {
    "rows": "Rows",
    "labels": "Labels",
    "repeats": "Repeated rows",
    "tokens": "Tokens",
    "shortcuts": "Shortcuts",
    "splits": "Splits",
}
LEVELS = ("good", "warn", "fail")


@recipe_options(
    *ROW_OPTIONS,
    set_option=ScoringSetOption,
    model=Annotated[
        str | None,
        option("Model for token counts and --label-errors: Hub name, directory or `demo`.", "MODEL", FROM_RECIPE),
    ],
)
def command(
    recipe: RecipeArgument,
    changes: dict[str, Any],
    label_errors: Annotated[
        bool,
        flag("--label-errors", "List labels that the model's vectors contradict (requires the extra `check`)."),
    ] = False,
    strict: Annotated[
        bool,
        flag("--strict", "Exit with code 3 on a warning, and with 5 if a check lacks a package or a model."),
    ] = False,
    fix: Annotated[
        Path | None,
        option("New folder for a copy without unusable rows and repeated or leaked training rows.", "DIR"),
    ] = None,
    report: ReportOption = None,
) -> None:
    """Check the rows of a recipe's data, without training.

    Finds unusable rows, odd labels, repeated and leaked rows, contradictions, truncated texts, words that give a label
    away, and splits that differ. The exit code is 3 if a finding is an error (`fail`).
    """
    from bertkit.recipe.load import load_recipe

    loaded_recipe = load_recipe(recipe, changes)
    from bertkit.workflows.check import check

    result = check(loaded_recipe, label_errors=label_errors, fix=fix, needs_model="model" in changes)
    copy = fix if result.rows.get("train") else None  # Without training rows, no copy is written.
    if report is not None:
        from bertkit.reports.cases import write_cases

        write_cases(report, f"{result.recipe}: {result.source}", _list_cases(result, strict=strict))
    values = {**vars(result), "counts": count_levels(result.findings), "fixed": copy}
    print_result(values, lambda _: print_findings(result, copy))
    levels = {finding.level for finding in result.findings}
    if "fail" in levels or (strict and "warn" in levels):
        raise typer.Exit(3)
    # A requested check that could not run is not a success.
    raise typer.Exit(5 if result.unavailable and (strict or label_errors) else 0)


def _list_cases(result: CheckResult, *, strict: bool) -> list[Case]:
    """Return a case for each finding and each skipped check."""
    from bertkit.reports.cases import Case

    failing_levels = ("fail", "warn") if strict else ("fail",)
    cases = []
    for finding in result.findings:
        outcome: Outcome = "failed" if finding.level in failing_levels else "passed"
        cases.append(Case(finding.group, finding.name, outcome, f"{finding.level}: {finding.text}"))
    # Without its skipped checks, the report would look complete.
    skipped_checks = (*result.left_out, *result.unavailable)
    return cases + [Case("left out", text.partition(":")[0], "skipped", text) for text in skipped_checks]


def print_findings(result: CheckResult, fix: Path | None) -> None:
    """Print the findings, the skipped checks, and the number of rows that `--fix` removed."""
    print_text(f"{result.recipe}: {result.source}")
    counts = ", ".join(f"{name} {count:,}" for name, count in result.rows.items())
    # The index column of a CSV file often has no name; it is shown as ''.
    columns = ", ".join(name or repr(name) for name in result.unread)
    print_text(f"  rows: {counts or 'none can be used'}{columns and '; columns not used: '}{columns}")
    print_groups(result.findings, _HEADINGS, result.source)
    print_line()
    for reason in (*result.left_out, *result.unavailable):
        print_text(f"left out: {reason}")
    if result.label_errors:
        print_text(f"most probable label errors (all {len(result.label_errors):,} with --json)")
        for error in result.label_errors[:10]:
            word = f"{error.word!r} is " if error.word else ""
            print_text(f"  {error.locate()}  {word}{error.label!r}, perhaps {error.suggested!r}")
            print_text(f"    {shorten(error.text, 200)}")
    if fix is not None:
        print_text(f"{fix}: a copy of the files" + ("" if result.removed else ", with all rows"))
        print_notes(f"left out: {count:,} {reason}" for reason, count in result.removed.items())
    print_levels(result.findings)


def count_levels(findings: Sequence[Finding]) -> dict[str, int]:
    """Count the findings of each level."""
    return {level: sum(finding.level == level for finding in findings) for level in LEVELS}


def print_levels(findings: Sequence[Finding]) -> None:
    """Print the number of findings per level, the worst level first."""
    print_line(", ".join(f"{count} {level}" for level, count in reversed(count_levels(findings).items())))


def print_groups(findings: Sequence[Finding], headings: Mapping[str, str], source: str = "") -> None:
    """Print findings under the headings of their groups, with paths relative to `source`."""
    for group, heading in headings.items():
        group_findings = [finding for finding in findings if finding.group == group]
        if group_findings:
            print_line(f"\n{heading}")
        for finding in group_findings:
            print_text(f"  {finding.level}  {finding.text}")
            # The text of a finding with a single place already contains the place.
            if finding.places and finding.count and str(finding.places[0]) not in finding.text:
                places = ", ".join(str(place).removeprefix(f"{source.rstrip('/')}/") for place in finding.places)
                print_text(f"        {places}{', ...' if finding.count > len(finding.places) else ''}")
