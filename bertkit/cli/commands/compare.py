"""`bertkit compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.completion import complete_column
from bertkit.cli.options import (
    PageOption,
    PredictionsRecipeOption,
    PredictionsSplitOption,
    ReportOption,
    argument,
    check_unused_options,
    flag,
    option,
)
from bertkit.cli.output import (
    difference_cells,
    format_difference,
    format_interval,
    format_rows,
    print_notes,
    print_table,
    print_text,
    print_with_gates,
)
from bertkit.reports.text import p_text

if TYPE_CHECKING:
    from bertkit.evaluation.differences import Changes
    from bertkit.metrics.paired import Difference
    from bertkit.workflows.compare import Comparison

ORDER = 23
EXAMPLE = "bertkit compare runs/cola runs/cola-2 --output compare.html"

RunsArgument = Annotated[
    list[str],
    argument("Runs, folders of seeds, or folders from `eval --output`; the first is the baseline.", "RUN RUN"),
]


def command(
    runs: RunsArgument,
    split: PredictionsSplitOption = None,
    data: Annotated[
        str | None,
        option("File with rows to score; training rows of the runs are skipped.", "FILE", "stored predictions"),
    ] = None,
    group_by: Annotated[
        str | None, option("Column of the data whose values become slices.", "COLUMN", autocompletion=complete_column)
    ] = None,
    show: Annotated[int, option("Number of won rows and of lost rows to show.", "N", min=0)] = 5,
    fail_if_worse: Annotated[
        bool,
        flag("--fail-if-worse", "Exit with code 8 if a run, or a slice of --group-by, is worse than the baseline."),
    ] = False,
    margin: Annotated[
        float,
        option("With --fail-if-worse: largest acceptable loss, which the interval must not exceed.", "X", min=0),
    ] = 0.0,
    metric: Annotated[
        list[str] | None,
        option("With --fail-if-worse: metric to compare; repeatable.", "NAME", "best_metric"),
    ] = None,
    if_inconclusive: Annotated[
        Literal["fail", "pass"],
        option("With --fail-if-worse: outcome if there are too few rows to decide, `fail` or `pass`.", "CHOICE"),
    ] = "fail",
    recipe: PredictionsRecipeOption = None,
    output: PageOption = None,
    report: ReportOption = None,
) -> None:
    """Test whether runs differ in their stored predictions, and show the rows behind the difference.

    Prints for each metric the difference from the first run, with 95% interval and p, and the number of rows needed to
    detect it. For folders of seeds, the test is over seeds and rows.
    """
    from bertkit.recipe.load import load_recipe

    gate = None
    if fail_if_worse:
        from bertkit.evaluation.gates import WorseGate

        gate = WorseGate(metric or (), margin, if_inconclusive)
    else:
        gate_options = {"--margin": margin or None, "--metric": metric, "--if-inconclusive": if_inconclusive == "pass"}
        check_unused_options(gate_options, "without --fail-if-worse", "add --fail-if-worse")
    loaded_recipe = None if recipe is None else load_recipe(recipe)
    from bertkit.workflows.compare import compare, write_page

    comparison = compare(runs, recipe=loaded_recipe, split=split, data=data, by=group_by, max_rows=show, gate=gate)
    if report is not None:
        from bertkit.reports.cases import add_measurements, write_cases

        title = f"{comparison.recipe}, {comparison.split}: {', '.join(system.name for system in comparison.systems)}"
        measurements = [
            (
                name,
                metric,
                f"{format_difference(difference.difference)} (95% CI {format_interval(difference.interval)})",
            )
            for name, differences in comparison.differences.items()
            for metric, difference in differences.items()
        ]
        write_cases(report, title, add_measurements(comparison.gates, measurements))
    print_with_gates(comparison, _print_comparison, comparison.gates, page=output, write=write_page)


def _print_comparison(comparison: Comparison) -> None:
    from bertkit.metrics.registry import with_direction

    counts = (f" ({len(system.seeds)} seeds)" if len(system.seeds) > 1 else "" for system in comparison.systems)
    baseline, *titles = (f"{system.name}{seeds}" for system, seeds in zip(comparison.systems, counts, strict=True))
    first = comparison.systems[0].name
    units = "" if comparison.rows == comparison.units else f", {comparison.units:,} queries"
    print_text(f"{comparison.recipe}, {comparison.split}: {format_rows(comparison.rows)}{units}; baseline: {baseline}")
    print_notes(comparison.notes)
    for title, (name, differences) in zip(titles, comparison.differences.items(), strict=True):
        print_text(f"{title} - {first}")
        table = [
            {
                "metric": with_direction(metric),
                first: difference.first,
                name: difference.second,
                **difference_cells(difference),
                "McNemar": "" if difference.mcnemar is None else p_text(difference.mcnemar),
            }
            for metric, difference in differences.items()
        ]
        print_table("scores", table)
        # McNemar's test needs answers that are right or wrong, so it only supplements the general test.
        tests = ", ".join(dict.fromkeys(difference.test for difference in differences.values()))
        if any(difference.p_holm is not None for difference in differences.values()):
            tests += "; Holm over the systems"
        if any(difference.mcnemar is not None for difference in differences.values()):
            tests += "; McNemar's test is exact"
        print_text(f"  p: {tests}")
        print_text(f"  {describe_power(differences[comparison.best_metric], comparison)}")
        _print_changes(comparison.changes[name], name, first)
    print_table("settings that differ", comparison.settings, max_rows=40)


def describe_power(difference: Difference, comparison: Comparison) -> str:
    """Return a line about the number of rows, or seeds, that detect the difference in the best metric."""
    unit = "rows" if comparison.rows == comparison.units else "queries"
    if difference.detectable is None:
        return f"power: unknown, because resampling the {unit} does not change the {comparison.best_metric}"
    # Power is the probability that a test detects a true difference; .8 is the usual convention (Cohen 1988). A smaller
    # difference than the detectable one can be real, but these rows cannot show it.
    power = f"{comparison.units:,} {unit} detect a difference of {difference.detectable:.4f} "
    power += f"in {comparison.best_metric} (power .8)"
    if not difference.difference:
        return power
    power += f"; {abs(difference.difference):.4f} needs"
    if difference.rows_needed is not None:
        seeds = " with these seeds" if "seeds" in difference.test else ""
        return f"{power} {difference.rows_needed:,} {unit}{seeds}"
    if difference.seeds_needed is not None:
        return f"{power} {difference.seeds_needed:,} seeds; more {unit} are not enough"
    return f"{power} more seeds and more {unit}"


def _print_changes(changes: Changes, name: str, baseline: str) -> None:
    from bertkit.metrics.registry import with_direction

    suffix = f", of {changes.judged:,} examined" if changes.judged < changes.changed else ""
    print_text(
        f"  answered differently: {changes.changed:,}; by {changes.metric}, {name} wins {changes.won:,}"
        f" and loses {changes.lost:,}{suffix}"
    )
    # On a won row, the system scores higher than the baseline.
    for verb, rows in (("won", changes.won_rows), ("lost", changes.lost_rows)):
        if rows:
            print_text(f"  {verb} by {name}")
        for row in rows:
            print_text(f"    {row.id}: {row.text}")
            print_text(f"      gold {row.gold}; {baseline}: {row.first}; {name}: {row.second}")
    slices = [
        {
            "slice": f"{part.by}: {part.value}",
            "rows": part.rows,
            baseline: part.first,
            name: part.second,
            "difference": format_difference(part.second - part.first),
            "won": part.won,
            "lost": part.lost,
        }
        for part in changes.slices
    ]
    print_table(f"{with_direction(changes.slice_metric)} by slice (without tests)", slices, max_rows=60)
