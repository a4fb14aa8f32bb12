"""`bertkit explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    CheckpointRecipeOption,
    FirstRowsOption,
    PageOption,
    PredictionSetOption,
    RowOption,
    TextOption,
    TrainedArgument,
    check_unused_options,
    option,
    parse_row,
    recipe_options,
)
from bertkit.cli.output import (
    format_count,
    format_difference,
    print_file,
    print_line,
    print_result,
    print_table,
    print_text,
    to_json,
)
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.workflows.explain import ExplainedRow

ORDER = 31
EXAMPLE = 'bertkit explain runs/cola --text "The dog chased old the bird."'

_MAX_WORDS = 10  # per table, the words with the largest values
_NOTHING = "nothing to explain: the row has no words"

TargetOption = Annotated[
    list[str] | None,
    option("Label to explain or, for taggers, word whose tag is explained; repeatable.", "NAME", "the prediction"),
]
StepsOption = Annotated[int, option("Maximum number of steps of integrated gradients.", "N", min=1, max=8192)]


@recipe_options("max_length", set_option=PredictionSetOption)
def command(
    run: TrainedArgument,
    changes: dict[str, Any],
    text: TextOption = None,
    row: RowOption = None,
    data: Annotated[str | None, option("File with rows to explain; `-` for stdin.", "FILE")] = None,
    errors: Annotated[
        int | None, option("Number of validation errors to explain, the most confident first.", "N", min=1)
    ] = None,
    limit: FirstRowsOption = None,
    target: TargetOption = None,
    integration_steps: StepsOption = 512,
    output: PageOption = None,
    recipe: CheckpointRecipeOption = None,
) -> None:
    """Explain a prediction by the contribution of each word.

    Prints two values per word: its integrated gradients, which add up to the change of the score if all words are
    masked, and the effect of masking only this word.
    """
    from bertkit.recipe.load import load_recipe
    from bertkit.storage.hub.models import get_recipe_file
    from bertkit.workflows import explain

    single_row = parse_row(text, row)
    sources = [single_row, data, errors]
    if sources.count(None) != 2:
        several = "more than one of --text or --row, --data, --errors"
        message = several if sources.count(None) < 2 else "nothing to explain"
        raise UsageError(message, "give one of --text, --row COLUMN=VALUE, --data FILE and --errors N")
    if data is None:
        check_unused_options({"--limit": limit}, "without --data", "leave it out: it limits the rows of a file")
    loaded_recipe = load_recipe(recipe or get_recipe_file(run), {"model": run, **changes})
    settings = {"targets": target or (), "max_steps": integration_steps}
    rows = explain.explain(loaded_recipe, source=data, row=single_row, errors=errors, limit=limit, **settings)
    if output is not None:
        print_file(output, explain.write_page(rows, output, loaded_recipe.model_name))
        return
    explained_rows = list(rows)
    print_result({"rows": [row.as_record() for row in explained_rows]}, lambda _: list(map(print_row, explained_rows)))


def print_row(row: ExplainedRow) -> None:
    """Print the prediction for a row and the contribution of each word."""
    print_line(to_json({"id": row.id, **({} if row.gold is None else {"gold": row.gold}), **row.prediction}))
    for explanation in row.explanations:
        # Integrated gradients start from the text with all words masked, so its score is printed too.
        score = f"{explanation.measure} {explanation.score:.4f}"
        print_text(f"  {explanation.target}: {score}, with all words masked {explanation.baseline_score:.4f}")
        # Integrated gradients are exact only if they add up to the difference of the two scores.
        steps = format_count(explanation.steps, "step")
        summary = f"the words add up to the difference within {explanation.gap:.2%} ({steps})"
        if not explanation.is_complete:
            summary = f"NOT COMPLETE: the words miss the difference by {explanation.gap:.1%} after {steps}"
            summary += "; raise --integration-steps"
        print_text(f"  {summary if explanation.words else _NOTHING}")
        table = [
            {
                "word": word.word,
                "integrated gradients": format_difference(word.integrated_gradients),
                # Effects of masking do not add up, because words can replace each other.
                "if masked": format_difference(word.occlusion),
            }
            for word in sorted(explanation.words, key=lambda word: -abs(word.integrated_gradients))
        ]
        print_table("contribution of each word", table, _MAX_WORDS)
    if not row.explanations:
        print_text(f"  {_NOTHING}")
    print_line()
