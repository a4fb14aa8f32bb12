"""`bertkit errors`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.completion import complete_column
from bertkit.cli.options import PageOption, PredictionsRecipeOption, PredictionsSplitOption, argument, flag, option
from bertkit.cli.output import (
    difference_cells,
    format_count,
    format_rows,
    print_notes,
    print_result,
    print_table,
    print_text,
)
from bertkit.errors import UsageError, shorten

if TYPE_CHECKING:
    from bertkit.insight.mistakes.outcomes import RowAnswer
    from bertkit.insight.mistakes.robustness import Robustness
    from bertkit.insight.mistakes.slices import ComparedSlice
    from bertkit.workflows.errors import Disagreement, Mistakes

ORDER = 30
EXAMPLE = "bertkit errors runs/cola --output errors.html"

RunsArgument = Annotated[
    list[str],
    argument(
        "A run folder, or what `eval --output` has written; of two, the rows where they differ are shown.", "RUN [RUN]"
    ),
]
Sort = Literal["confidence", "length", "label", "error"]
SortOption = Annotated[Sort, option("How wrong rows are sorted: confidence, length, label or error.", "KEY")]


def command(
    runs: RunsArgument,
    sort: SortOption = "confidence",
    rows: Annotated[int, option("How many wrong rows to show.", "N", min=0)] = 10,
    by: Annotated[
        list[str] | None,
        option("Column of the data whose values are slices too; repeatable.", "COLUMN", autocompletion=complete_column),
    ] = None,
    robustness: Annotated[
        bool, flag("--robustness", "Change the texts a little, predict them again, and count answers that flip.")
    ] = False,
    limit: Annotated[int, option("How many rows --robustness changes in each way.", "N")] = 500,
    write_cases: Annotated[
        Path | None, option("Write tests for `bertkit test` to this new .yaml file: the wrong rows, and small changes.")
    ] = None,
    split: PredictionsSplitOption = None,
    recipe: PredictionsRecipeOption = None,
    output: PageOption = None,
) -> None:
    """Show what a run gets wrong, and the slices of rows where it is worse than chance would have it.

    Stored predictions are enough; only --robustness loads the model. Slices are by label, length, new words, negation,
    names, numbers and the columns of --by. Of two runs, the rows that only one gets right are shown.
    """
    from bertkit.recipe import load_recipe
    from bertkit.reports.insight.errors import write_disagreement, write_mistakes
    from bertkit.workflows.errors import ErrorSettings, find_disagreement, find_errors

    if len(runs) > 2:
        raise UsageError(f"{len(runs)} runs", "name one or two; `bertkit compare` takes more")
    loaded = None if recipe is None else load_recipe(recipe)
    settings = ErrorSettings(split, by or (), sort, robustness, limit, write_cases)
    # Of one run: where it is wrong. Of two: where only one is wrong, which cancels in their scores.
    if len(runs) == 1:
        mistakes = find_errors(runs[0], settings, recipe=loaded)
        print_result(mistakes, lambda _: _print_mistakes(mistakes, rows), page=output, write=write_mistakes)
    else:
        differing = find_disagreement(runs[0], runs[1], settings, recipe=loaded)
        print_result(differing, lambda _: _print_disagreement(differing, rows), page=output, write=write_disagreement)


def _print_mistakes(result: Mistakes, shown: int) -> None:
    from bertkit.metrics.basic import with_direction

    units = format_rows(result.rows) + ("" if result.units == result.rows else f", {result.units:,} queries")
    scores = ", ".join(f"{with_direction(name)} {value:.4f}" for name, value in result.scores.items())
    print_text(f"{result.recipe}, {result.split}: {units}; {scores}")
    print_text(f"  {result.what}: {result.rate:.4f}; with an error: {result.wrong:,} of {result.units:,}")
    _print_slices(result.slices, result.test, ("in it", "in the rest"), "is worse than the rest")
    if result.robustness is not None:
        _print_robustness(result.robustness)
    _print_rows(result.mistakes, shown)
    print_notes(result.notes)


def _print_disagreement(result: Disagreement, shown: int) -> None:
    print_text(f"{result.recipe}, {result.split}: {format_rows(result.rows)}")
    print_text(f"  {result.what}: {result.first} {result.rates[0]:.4f}, {result.second} {result.rates[1]:.4f}")
    print_text(
        f"  both right: {result.both_right:,}; both wrong: {result.both_wrong:,}; only {result.first} wrong, or more "
        f"so: {len(result.only_first_wrong):,}; only {result.second}: {len(result.only_second_wrong):,}"
    )
    print_text(f"  whether one is better: bertkit compare {result.first} {result.second}")
    columns = (f"{result.second} - {result.first}", "in the rest")
    _print_slices(result.slices, result.test, columns, "differs from the rest")
    for worse, pairs in ((result.second, result.only_second_wrong), (result.first, result.only_first_wrong)):
        if pairs and shown:
            print_text(f"  only {worse} is wrong, or more so")
        for one, other in pairs[:shown]:
            print_text(f"    {one.id}: {one.text}")
            answers = map(shorten, (one.gold, one.predicted, other.predicted))
            print_text("      gold {}; {first}: {}; {second}: {}".format(*answers, **vars(result)))
    print_notes(result.notes)


def _print_slices(slices: Sequence[ComparedSlice], test: str, columns: tuple[str, str], what: str) -> None:
    # A star is what stays after the correction for many slices; the raw p is shown for all.
    beyond_chance = [tested for tested in slices if tested.is_beyond_chance]
    tested = sum(part.p is not None for part in slices)
    summary = format_count(len(beyond_chance), "slice") if beyond_chance else "no slice"
    what = what if len(beyond_chance) < 2 else what.replace("is ", "are ", 1).replace("differs", "differ")
    print_text(f"  {summary} {what} beyond chance, of {tested} ({test}; p < .05 after Holm's correction)")
    if tested < len(slices):
        print_text(f"  not tested (p n/a), for they have too few rows or errors: {len(slices) - tested} slices")
    table = [
        {
            "slice": f"{'* ' if part.is_beyond_chance else '  '}{part.by}: {part.value}",
            "rows": part.units,
            columns[0]: part.rate,
            columns[1]: part.rest,
            **difference_cells(part),
        }
        for part in slices
    ]
    print_table("slices", table)


def _print_robustness(robustness: Robustness) -> None:
    table = [
        {
            "change": one.name,
            "rows": one.rows,
            "flips": one.failed,
            "share": f"{one.share:.1%}",
            "95% CI": one.interval,
            "right to wrong": None if one.may_flip else one.lost,
            "wrong to right": None if one.may_flip else one.won,
        }
        for one in robustness.edits
    ]
    print_table(
        f"answers that flip when {robustness.column} is changed, of up to {format_rows(robustness.rows)}", table
    )
    for one in robustness.edits:
        for flip in one.trials[: min(one.failed, 1)]:
            print_text(f"    {one.name}: {flip.after}: {flip.answer} -> {flip.new_answer}")
    if robustness.left_out:
        print_text(f"    nothing to change for: {', '.join(robustness.left_out)}")


def _print_rows(answers: Sequence[RowAnswer], shown: int) -> None:
    if answers and shown:
        print_text(f"  wrong rows: the first {min(shown, len(answers)):,} of {len(answers):,}")
    for answer in answers[:shown]:
        confidence = "" if answer.confidence is None else f"; confidence {answer.confidence:.3f}"
        size = "" if answer.error == 1 else f"; error {answer.error:.4g}"
        print_text(f"    {answer.id}: {answer.text}")
        print_text(f"      gold {shorten(answer.gold)}; predicted {shorten(answer.predicted)}{confidence}{size}")
