"""`bertkit explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    AnsweringSetOption,
    CheckpointRecipeOption,
    FirstRowsOption,
    PageOption,
    RowOption,
    TextOption,
    TrainedArgument,
    option,
    parse_row,
    recipe_options,
    refuse_options,
)
from bertkit.cli.output import (
    format_count,
    format_signed,
    print_file,
    print_line,
    print_result,
    print_table,
    print_text,
    to_json,
)
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.insight.explanations import Explanation
    from bertkit.workflows.explain import ExplainedRow

ORDER = 31
EXAMPLE = 'bertkit explain runs/cola --text "The dog chased old the bird."'

_MOST_WORDS = 10  # in a table; those with the largest values

TargetOption = Annotated[
    list[str] | None, option("Explain this label, or the tag of this word; repeatable.", "NAME", "what is predicted")
]
StepsOption = Annotated[int, option("At most so many steps of integrated gradients.", "N", min=1, max=8192)]


@recipe_options("max_length", set_option=AnsweringSetOption)
def command(
    run: TrainedArgument,
    changes: dict[str, Any],
    text: TextOption = None,
    row: RowOption = None,
    data: Annotated[str | None, option("Explain the rows of a file, or with `-` those of stdin.", "FILE")] = None,
    mistakes: Annotated[
        int | None, option("Explain the N validation rows that the run is most confidently wrong about.", "N", min=1)
    ] = None,
    limit: FirstRowsOption = None,
    target: TargetOption = None,
    integration_steps: StepsOption = 512,
    output: PageOption = None,
    recipe: CheckpointRecipeOption = None,
) -> None:
    """Explain a prediction: what each word adds to it.

    Prints integrated gradients over the word embeddings, with a check that they add up, and the effect of masking each
    word.
    """
    from bertkit.recipe import load_recipe
    from bertkit.storage.recipes import recipe_of
    from bertkit.workflows import explain

    single = parse_row(text, row)
    given = [single, data, mistakes]
    if given.count(None) != 2:
        what = (
            "nothing to explain" if given.count(None) == 3 else "more than one of --text or --row, --data, --mistakes"
        )
        raise UsageError(what, "give --text, --row column=value, --data FILE or --mistakes N")
    if data is None:
        refuse_options({"--limit": limit}, "without --data", "it is for the rows of a file")
    loaded = load_recipe(recipe or recipe_of(run), {"model": run, **changes})
    rows = explain.explain(
        loaded,
        source=data,
        row=single,
        mistakes=mistakes,
        limit=limit,
        targets=target or (),
        max_steps=integration_steps,
    )
    if output is not None:
        print_file(output, explain.write_page(rows, output, loaded, data))
        return
    explained = list(rows)
    print_result({"rows": [row.as_record() for row in explained]}, lambda _: list(map(print_row, explained)))


def print_row(row: ExplainedRow) -> None:
    """Print what is predicted of a row, and what its words add to that."""
    print_line(to_json({"id": row.id, **({} if row.gold is None else {"gold": row.gold}), **row.prediction}))
    for one in row.explanations:
        _print_explanation(one)
    if not row.explanations:
        print_text("  nothing to explain: no word is read")
    print_line()


def _print_explanation(shown: Explanation) -> None:
    print_text(f"  {shown.target}: {shown.measure} {shown.score:.4f}, with all words masked {shown.baseline_score:.4f}")
    if not shown.words:
        print_text("  nothing to explain: no word is read")
        return
    steps = format_count(shown.steps, "step")
    # Integrated gradients are exact only if they add up to the difference of the scores, so the gap is always shown.
    added_up = f"the words add up to the difference within {shown.gap:.2%} ({steps})"
    missed = f"NOT COMPLETE: the words miss the difference by {shown.gap:.1%} after {steps}; try --integration-steps"
    print_text(f"  {added_up if shown.is_complete else missed}")
    ranked = sorted(shown.words, key=lambda word: -abs(word.integrated_gradients))
    table = [
        {
            "word": word.word,
            "integrated gradients": format_signed(word.integrated_gradients),
            "masked": format_signed(word.occlusion),
        }
        for word in ranked
    ]
    print_table("what each word adds", table, _MOST_WORDS)
