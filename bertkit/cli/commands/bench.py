"""`bertkit bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    FROM_RECIPE,
    ROW_OPTIONS,
    RecipeArgument,
    merge_changes,
    option,
    recipe_options,
)
from bertkit.cli.output import print_notes, print_result, print_table, print_text
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.workflows.bench import Bench

ORDER = 55
EXAMPLE = "bertkit bench cola --model demo --data demo"


@recipe_options("model", *ROW_OPTIONS)
def command(
    changes: dict[str, Any],
    recipe: RecipeArgument = "cola",
    precision: Annotated[
        list[str] | None,
        option("Precision: fp32, bf16 or auto; repeat it to compare.", "PRECISION", "fp32, and bf16 if it is faster"),
    ] = None,
    batch_size: Annotated[
        list[int] | None, option("Rows per optimizer step; repeat it to compare.", "N", FROM_RECIPE)
    ] = None,
    steps: Annotated[int, option("Number of steps to time, after three warm-up steps.", "N")] = 20,
) -> None:
    """Measure a model's training speed and memory use.

    Times some training steps on this machine for each precision and batch size, and estimates the duration of the
    complete training from them. Nothing is saved. Options override the recipe.
    """
    from bertkit.recipe.load import load_recipe

    # Each batch size is measured with each precision; without options, both come from the recipe.
    recipes = [
        load_recipe(recipe, merge_changes({"training.precision": dtype, "training.batch_size": rows}, changes))
        for rows in dict.fromkeys(batch_size or ()) or (None,)
        for dtype in dict.fromkeys(precision or ()) or (None,)
    ]
    from bertkit.workflows.bench import bench

    print_result(bench(recipes, steps=steps), print_bench)


def print_bench(bench: Bench) -> None:
    """Print the training speed, and the estimated times, of each precision and batch size."""
    print_text(
        f"{bench.recipe}, {bench.model}: {bench.rows:,} rows of {bench.tokens:,} tokens, {bench.epochs:g} epochs"
    )
    # One table with all columns would be wider than a terminal of 80 characters.
    speeds, times = [], []
    for speed in bench.speeds:
        memory = speed.peak_memory_bytes
        case = {"precision": speed.precision, "batch": speed.batch_size}
        speeds.append(
            {
                **case,
                "tokens/s": _format_value(speed.tokens_per_second, "{:,.0f}"),
                "rows/s": _format_value(speed.rows_per_second, "{:,.1f}"),
                # Fraction of the computed tokens; batches of similar length have less padding.
                "padding": _format_value(speed.padding_share, "{:.1%}"),
                "memory": "-" if memory is None else f"{memory / 1e6:,.0f} MB",
                "": "fastest" if speed is bench.fastest else "",
            }
        )
        times.append(
            {
                **case,
                "evaluation rows/s": _format_value(speed.evaluation_rows_per_second, "{:,.1f}"),
                "epoch": duration_text(speed.epoch_seconds),
                "training": duration_text(speed.recipe_seconds),
            }
        )
    # A case that ran out of memory completed no steps.
    steps = max(speed.steps for speed in bench.speeds)
    print_table(f"training speed, measured over {steps} steps" if steps else "training speed", speeds)
    print_table("evaluation speed and estimated times", times)
    print_notes(dict.fromkeys(note for speed in bench.speeds for note in speed.notes))
    print_text("  The training time includes evaluation, but not startup, scoring and saving.")


def _format_value(value: float | None, template: str) -> str:
    return "-" if value is None else template.format(value)
