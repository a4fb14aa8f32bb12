"""`bertkit errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.completion import complete_column
from bertkit.cli.options import PageOption, PredictionsRecipeOption, PredictionsSplitOption, argument, option
from bertkit.cli.output import (
    difference_cells,
    format_count,
    format_rows,
    print_notes,
    print_result,
    print_table,
    print_text,
)
from bertkit.errors import shorten

if TYPE_CHECKING:
    from bertkit.workflows.errors import Mistakes

ORDER = 30
EXAMPLE = "bertkit errors runs/cola --output errors.html"

Sort = Literal["confidence", "length", "label", "error"]
SortOption = Annotated[Sort, option("Order of the wrong rows: confidence, length, label or error.", "KEY")]


def command(
    run: Annotated[str, argument("Run folder, or folder that `eval --output` wrote.", "RUN")],
    sort: SortOption = "confidence",
    show: Annotated[int, option("Number of wrong rows to show.", "N", min=0)] = 10,
    group_by: Annotated[
        list[str] | None,
        option("Column of the data whose values become slices; repeatable.", "COLUMN", autocompletion=complete_column),
    ] = None,
    split: PredictionsSplitOption = None,
    recipe: PredictionsRecipeOption = None,
    output: PageOption = None,
) -> None:
    """Show the wrong rows of a run, and the slices with significantly more errors than the rest.

    Reads stored predictions and loads no model. Slices are by label, length, new words, negation, names, numbers and
    the columns of --group-by.
    """
    from bertkit.recipe.load import load_recipe
    from bertkit.reports.errors import write_mistakes
    from bertkit.workflows.errors import find_errors

    loaded_recipe = None if recipe is None else load_recipe(recipe)
    mistakes = find_errors(run, split=split, by=group_by or (), sort=sort, recipe=loaded_recipe)
    print_result(mistakes, lambda _: _print_mistakes(mistakes, show), page=output, write=write_mistakes)


def _print_mistakes(result: Mistakes, max_shown: int) -> None:
    from bertkit.data.checks import format_fraction
    from bertkit.metrics.registry import with_direction

    units = format_rows(result.rows) + ("" if result.units == result.rows else f", {result.units:,} queries")
    scores = ", ".join(f"{with_direction(name)} {value:.4f}" for name, value in result.scores.items())
    print_text(f"{result.recipe}, {result.split}: {units}; {scores}")
    # If a unit is right or wrong, its rate of errors repeats the fraction of wrong units.
    rate = "" if result.rate == result.wrong / result.units else f"{result.what}: {result.rate:.4f}; "
    print_text(f"  {rate}wrong: {format_fraction(result.wrong, result.units)}")

    num_worse = sum(part.is_beyond_chance for part in result.slices)
    num_tested = sum(part.p is not None for part in result.slices)
    summary = f"{num_worse} of {format_count(num_tested, 'tested slice')}"
    print_text(f"  significantly worse than the rest: {summary} ({result.test}; p < .05 after Holm's correction)")
    if num_untested := len(result.slices) - num_tested:
        print_text(f"  not tested (p n/a), because of too few rows or errors: {format_count(num_untested, 'slice')}")
    table = [
        {
            "slice": f"{'* ' if part.is_beyond_chance else '  '}{part.by}: {part.value}",
            "rows": part.units,
            "in slice": part.rate,
            "in the rest": part.rest,
            **difference_cells(part),
        }
        for part in result.slices
    ]
    print_table("slices (*: significantly worse)", table)

    if result.mistakes and max_shown:
        print_text(f"  wrong rows: the first {min(max_shown, len(result.mistakes)):,} of {len(result.mistakes):,}")
    for answer in result.mistakes[:max_shown]:
        confidence = "" if answer.confidence is None else f"; confidence {answer.confidence:.3f}"
        # A wrong label has error 1, so the error is printed only for numbers and partly right answers.
        size = "" if answer.error == 1 else f"; error {answer.error:.4g}"
        print_text(f"    {answer.id}: {answer.text}")
        print_text(f"      gold {shorten(answer.gold)}; predicted {shorten(answer.predicted)}{confidence}{size}")
    print_notes(result.notes)
