"""`bertkit check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import (
    ROWS,
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

# The order of the output: from faults of single rows to differences between splits.
_GROUPS = {
    "rows": "Rows",
    "labels": "Labels",
    "repeats": "Repeated rows",
    "tokens": "Tokens",
    "shortcuts": "Shortcuts",
    "splits": "Splits",
}
LEVELS = ("good", "warn", "fail")


@recipe_options(
    *ROWS,
    set_option=ScoringSetOption,
    model=Annotated[
        str | None,
        option(
            "Model whose tokenizer counts tokens, and whose vectors find label errors: Hub name, directory or `demo`.",
            "MODEL",
            "the recipe's",
        ),
    ],
)
def command(
    recipe: RecipeArgument,
    changes: dict[str, Any],
    label_errors: Annotated[
        bool,
        flag("--label-errors", "List labels that are probably wrong, by the model's vectors (extra `check`)."),
    ] = False,
    strict: Annotated[
        bool,
        flag("--strict", "Exit with code 3 after a warning, and with 5 if a check lacked a package or a model."),
    ] = False,
    fix: Annotated[
        Path | None,
        option(
            "New folder for a cleaned copy: without rows that lack a text or a label, and without training rows that "
            "are repeated or also in another split.",
            "DIR",
        ),
    ] = None,
    report: ReportOption = None,
) -> None:
    """Check the rows of a recipe's data, without training.

    Finds unusable rows, odd labels, repeated and leaked rows, contradictions, truncated texts, words that give a label
    away, and splits that differ. The exit code is 3 if a finding is an error (`fail`).
    """
    from bertkit.recipe.load import load_recipe

    loaded = load_recipe(recipe, changes)
    from bertkit.workflows.check import check

    checked = check(loaded, label_errors=label_errors, fix=fix, needs_model="model" in changes)
    copy = fix if checked.rows.get("train") else None  # Without training rows, no copy is written.
    if report is not None:
        from bertkit.reports.cases import write_cases

        write_cases(report, f"{checked.recipe}: {checked.source}", _list_cases(checked, strict=strict))
    values = {**vars(checked), "counts": count_levels(checked.findings), "fixed": copy}
    print_result(values, lambda _: print_findings(checked, copy))
    # The exit code comes last, after the report and all findings are printed.
    levels = {finding.level for finding in checked.findings}
    if "fail" in levels or (strict and "warn" in levels):
        raise typer.Exit(3)
    # A check that was requested and could not be done is not a success.
    raise typer.Exit(5 if checked.unavailable and (strict or label_errors) else 0)


def _list_cases(result: CheckResult, *, strict: bool) -> list[Case]:
    """Return a case for each finding and for each check that was left out."""
    from bertkit.reports.cases import Case

    failing_levels, cases = ("fail", "warn") if strict else ("fail",), []
    for finding in result.findings:
        outcome: Outcome = "failed" if finding.level in failing_levels else "passed"
        cases.append(Case(finding.group, finding.name, outcome, f"{finding.level}: {finding.text}"))
    # The report also lists omitted checks, because their absence would look like a clean result.
    left_out = (*result.left_out, *result.unavailable)
    return cases + [Case("left out", text.partition(":")[0], "skipped", text) for text in left_out]


def print_findings(result: CheckResult, fix: Path | None) -> None:
    """Print the findings under their headings, the skipped checks, and how many rows `--fix` removed from its copy."""
    print_text(f"{result.recipe}: {result.source}")
    counts = ", ".join(f"{name} {count:,}" for name, count in result.rows.items())
    # A CSV file with an index column has a column without a name, which is shown as ''.
    columns = ", ".join(name or repr(name) for name in result.unread)
    print_text(f"  rows: {counts or 'none can be used'}{columns and '; columns that are not read: '}{columns}")
    print_groups(result.findings, _GROUPS, result.source)
    print_line()
    for reason in (*result.left_out, *result.unavailable):
        print_text(f"left out: {reason}")
    if result.label_errors:
        print_text(f"likeliest label errors (all {len(result.label_errors):,} with --json)")
        for error in result.label_errors[:10]:
            word = f"{error.word!r} is " if error.word else ""
            print_text(f"  {error.locate()}  {word}{error.label!r}, perhaps {error.suggested!r}")
            print_text(f"    {shorten(error.text, 200)}")
    if fix is not None:
        print_text(f"{fix}: a copy of the files" + ("" if result.removed else ", in which no row was left out"))
        print_notes(f"left out: {count:,} {reason}" for reason, count in result.removed.items())
    print_levels(result.findings)


def count_levels(findings: Sequence[Finding]) -> dict[str, int]:
    """Count the findings of each level."""
    return {level: sum(finding.level == level for finding in findings) for level in LEVELS}


def print_levels(findings: Sequence[Finding]) -> None:
    """Print the number of findings of each level, the worst first."""
    print_line(", ".join(f"{count} {level}" for level, count in reversed(count_levels(findings).items())))


def print_groups(findings: Sequence[Finding], headings: Mapping[str, str], source: str = "") -> None:
    """Print findings under the headings of their groups; file names are relative to the folder of the data."""
    for group, heading in headings.items():
        grouped = [finding for finding in findings if finding.group == group]
        if grouped:
            print_line(f"\n{heading}")
        for finding in grouped:
            print_text(f"  {finding.level}  {finding.text}")
            # The text of a single place already contains it.
            if finding.places and finding.count and str(finding.places[0]) not in finding.text:
                places = ", ".join(str(place).removeprefix(f"{source.rstrip('/')}/") for place in finding.places)
                print_text(f"        {places}{', ...' if finding.count > len(finding.places) else ''}")
