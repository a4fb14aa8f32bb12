"""`bertkit explain`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from bertkit.cli.options import (
    AnsweringSetOption,
    CheckpointRecipeOption,
    FirstRowsOption,
    MaxLengthOption,
    PageOption,
    RowOption,
    TextOption,
    TrainedArgument,
    flag,
    load,
    option,
    parse_row,
    refuse_options,
)
from bertkit.cli.output import (
    format_count,
    format_rows,
    format_scored,
    format_signed,
    print_file,
    print_line,
    print_result,
    print_table,
    print_text,
    terminal_width,
    to_json,
)
from bertkit.cli.stdio import printable
from bertkit.errors import UsageError
from bertkit.storage.runs import is_main_process

if TYPE_CHECKING:
    from bertkit.insight.explanations import Explanation
    from bertkit.workflows.explain import ExplainedRow, FaithfulnessResult

ORDER = 31
EXAMPLE = 'bertkit explain runs/cola --text "The dog chased old the bird."'

_MOST_WORDS = 10  # in a table; those with the largest values

TargetOption = Annotated[
    list[str] | None, option("Explain this label, or the tag of this word; repeatable.", "NAME", "what is predicted")
]
StepsOption = Annotated[int, option("At most so many steps of integrated gradients.", "N", min=1, max=8192)]


def command(
    run: TrainedArgument,
    text: TextOption = None,
    row: RowOption = None,
    data: Annotated[str | None, option("Explain the rows of a file, or with `-` those of stdin.", "FILE")] = None,
    mistakes: Annotated[
        int | None, option("Explain the N validation rows that the run is most confidently wrong about.", "N", min=1)
    ] = None,
    limit: FirstRowsOption = None,
    target: TargetOption = None,
    faithfulness: Annotated[
        bool, flag("--faithfulness", "Measure over the rows of --data how faithful the explanations are.")
    ] = False,
    baseline: Annotated[Literal["mask", "padding"], option("Token that stands for no information.", "TOKEN")] = "mask",
    integration_steps: StepsOption = 512,
    output: PageOption = None,
    recipe: CheckpointRecipeOption = None,
    max_length: MaxLengthOption = None,
    changes: AnsweringSetOption = None,
) -> None:
    """Explain a prediction: what each word adds to it.

    Integrated gradients over the word embeddings, with the check that they add up, and beside them what happens when a
    word is masked. --faithfulness measures whether these words are what the predictions rest on.
    """
    from bertkit.insight.settings import Settings
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
    if faithfulness and (data is None or output is not None):
        what = "--faithfulness without --data" if data is None else "--faithfulness and --output"
        raise UsageError(what, "name a file of rows" if data is None else "leave one of them out")
    loaded = load(recipe or recipe_of(run), {"model": run, "training.max_length": max_length}, changes)
    asked = explain.AskedRows(data, single, mistakes, limit)
    settings = Settings(tuple(target or ()), baseline, integration_steps)
    if faithfulness and data is not None:
        print_result(explain.measure(loaded, asked, settings), print_faithfulness)
        return
    rows = explain.explain(loaded, asked, settings)
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
    print_highlighted([(word.word, word.integrated_gradients) for word in shown.words])
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


def print_highlighted(words: Iterable[tuple[str, float]]) -> None:
    """Print a text whose words are green for positive values and red for negative ones, the stronger the larger.

    Only a terminal shows colors; elsewhere nothing is printed.
    """
    from rich.console import Console
    from rich.text import Text

    if terminal_width() is None or not is_main_process():
        return
    valued = list(words)
    most = max((abs(value) for _, value in valued), default=0.0) or 1.0
    line = Text("    ")
    for word, value in valued:
        share = abs(value) / most
        color = "green" if value > 0 else "red"
        line.append(printable(word), style=f"bold {color}" if share > 0.5 else color if share > 0.1 else "")
        line.append(" ")
    Console(highlight=False).print(line, soft_wrap=False)


def print_faithfulness(result: FaithfulnessResult) -> None:
    """Print how much predictions rest on the words that each method finds, beside random ones."""
    print_text(f"{format_rows(result.rows)}; integrated gradients add up within 1 % in {result.complete:,}")
    table = [
        {
            "method": measured.method,
            "comprehensiveness": format_scored(measured.comprehensiveness, measured.comprehensiveness_interval),
            "above random": measured.above_random,
            "sufficiency": format_scored(measured.sufficiency, measured.sufficiency_interval),
            "below random": measured.below_random,
        }
        for measured in result.methods
    ]
    print_table(f"drop of the {result.score} without the words that count most, and with them alone (95% CI)", table)
