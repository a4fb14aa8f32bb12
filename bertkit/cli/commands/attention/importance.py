"""`bertkit attention importance`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import (
    AnsweringSetOption,
    CheckpointRecipeOption,
    DataOption,
    MaxLengthOption,
    PageOption,
    TrainedArgument,
    load,
    option,
)
from bertkit.cli.output import format_rows, format_scored, format_signed, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.workflows.attention import ImportantHeads

ORDER = 3
EXAMPLE = "bertkit attention importance runs/cola --rows 128"


def command(
    run: TrainedArgument,
    data: DataOption = None,
    split: Annotated[str | None, option("Split to score.", "SPLIT", "validation")] = None,
    rows: Annotated[int, option("Score the first N rows, once for each head.", "N", min=2)] = 256,
    recipe: CheckpointRecipeOption = None,
    max_length: MaxLengthOption = None,
    output: PageOption = None,
    changes: AnsweringSetOption = None,
) -> None:
    """Score a run without each of its heads: which ones does it need?

    A head is left out by zeros in place of its output (Michel et al. 2019). Beside the change of the recipe's best
    metric stands the estimate by gradient, which `prune` goes by.
    """
    from bertkit.reports.insight.attention_heads import write_importance
    from bertkit.storage.recipes import recipe_of
    from bertkit.workflows.attention import check_output, rank_by_importance

    settings = {"model": run, "data.source": data, "training.max_length": max_length}
    loaded = load(recipe or recipe_of(run), settings, changes)
    check_output(output, loaded.model, {})
    ranked = rank_by_importance(loaded, split=split, rows=rows)
    print_result(ranked, _print_importance, page=output, write=write_importance)


def _print_importance(ranked: ImportantHeads) -> None:
    score = format_scored(ranked.score, ranked.interval)
    print_text(f"{ranked.run}: {ranked.metric} {score} on {format_rows(ranked.rows)} of {ranked.split}, with all heads")
    table = [
        {
            "head": f"{head.layer}.{head.head}",
            "score": head.score,
            "difference": format_signed(head.difference),
            "95% CI": head.interval,
            "gradient": f"{head.gradient:.3g}",
        }
        for head in ranked.ranked()
    ]
    print_table(f"{ranked.metric} without each head (layer.head)", table, max_rows=len(table))
    print_text("  Intervals are of one head each, and not corrected for how many there are.")
