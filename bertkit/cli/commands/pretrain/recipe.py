"""`bertkit pretrain RECIPE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import (
    FROM_RECIPE,
    FreshOption,
    LearningRateOption,
    MaxLengthOption,
    OutputOption,
    ReportToOption,
    SeedOption,
    SetOption,
    argument,
    common_settings,
    flag,
    merge_changes,
    option,
    refuse_rows,
)
from bertkit.cli.output import (
    format_number,
    print_line,
    print_next,
    print_notes,
    print_plan,
    print_result,
    print_table,
    print_text,
    size_cells,
)
from bertkit.cli.smoke import SmokeOption, print_smoke, refuse_with_smoke
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.recipe import PretrainRecipe
    from bertkit.workflows.pretrain.estimate import Estimate
    from bertkit.workflows.pretrain.publish import Pretrained

ORDER = 3
EXAMPLE = "bertkit pretrain mlm --data text.txt --tokenizer tok --size small"


PretrainingRecipeArgument = Annotated[
    str,
    argument(
        "mlm, roberta, span, bert, albert, electra, distilbert, tinybert or a YAML file.",
        "RECIPE",
        callback=refuse_rows,
    ),
]
CorpusOption = Annotated[str | None, option("Text: hub data set, directory, file or `demo`.", "DATA", FROM_RECIPE)]
SizeOption = Annotated[str | None, option("Size of a new model; see `bertkit pretrain sizes`.", "SIZE", FROM_RECIPE)]
TokenizerOption = Annotated[str | None, option("Tokenizer of a new model: folder or hub name.", "DIR", False)]
DocumentsOption = Annotated[int | None, option("Use only the first N documents.", "N", "all")]
StepsOption = Annotated[int | None, option("Optimizer steps of pretraining.", default=FROM_RECIPE)]


def command(
    recipe: PretrainingRecipeArgument,
    data: CorpusOption = None,
    model: Annotated[str | None, option("Continue from this checkpoint.", "MODEL", False)] = None,
    size: SizeOption = None,
    tokenizer: TokenizerOption = None,
    output: OutputOption = None,
    steps: StepsOption = None,
    epochs: Annotated[float | None, option("Passes over the text.", default=False)] = None,
    budget: Annotated[str | None, option("Train for this long: 90s, 30m, 2h, 1d.", "TIME", False)] = None,
    batch_size: Annotated[int | None, option("Blocks per optimizer step.", default=FROM_RECIPE)] = None,
    learning_rate: LearningRateOption = None,
    max_length: MaxLengthOption = None,
    seed: SeedOption = None,
    limit: DocumentsOption = None,
    workers: Annotated[
        int | None, option("Processes that prepare batches; the result is the same.", default=FROM_RECIPE)
    ] = None,
    report_to: ReportToOption = None,
    changes: SetOption = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Prepare the text, time some steps and estimate the whole run.")
    ] = False,
    smoke: SmokeOption = False,
    fresh: FreshOption = False,
) -> None:
    """Pretrain an encoder on text with a recipe.

    After an interruption, the same command resumes the run. The result is a checkpoint for `bertkit finetune`.
    Options override the recipe.
    """
    settings = {
        **common_settings(data, limit, epochs, learning_rate, batch_size, max_length, seed, report_to),
        "model": model,
        "size": size,
        "tokenizer": tokenizer,
        "training.steps": steps,
        "training.budget": budget,
        "training.workers": workers,
    }
    from bertkit.recipe import load_pretrain_recipe

    loaded = load_pretrain_recipe(recipe, merge_changes(settings, changes))
    run_pretraining(loaded, output, dry_run=dry_run, smoke=smoke, fresh=fresh)


def run_pretraining(recipe: PretrainRecipe, output: Path | None, *, dry_run: bool, smoke: bool, fresh: bool) -> None:
    """Pretrain with a recipe, or estimate what that would take, and print the result."""
    if smoke:
        refuse_with_smoke(output=output, dry_run=dry_run, fresh=fresh)
        from bertkit.workflows.pretrain.smoke import smoke_pretrain

        print_smoke(smoke_pretrain(recipe))
    elif dry_run:
        from bertkit.workflows.pretrain.estimate import estimate

        plan = estimate(recipe, output=output, fresh=fresh)
        print_result(plan, print_estimate)
    else:
        from bertkit.workflows.pretrain import pretrain

        result = pretrain(recipe, output=output, fresh=fresh)
        print_result(result, print_pretrained)


def print_pretrained(result: Pretrained) -> None:
    """Print the scores of a pretraining run and the commands that a user may want to run next."""
    from bertkit.metrics.baselines import strongest, tabulate
    from bertkit.workflows.pretrain.publish import next_commands

    print_text(
        f"{result.recipe}: {result.model}, {result.parameters:,} parameters, {result.steps:,} steps, "
        f"{result.tokens:,} tokens in {duration_text(result.seconds)}"
    )
    print_line(f"  {'held-out documents':<23} {result.corpus['validation']['documents']:7,}")
    for name, score in result.scores.items():
        of_baseline, least = strongest(result.baselines, name)
        baseline = "" if least is None else f"  baseline {format_number(least):>7} ({of_baseline})"
        print_text(f"  {name:<23} {format_number(score):>7}{baseline}")
    print_table("baselines", tabulate(result.baselines))
    sizes = [size_cells(model["role"], model, unit="block") for model in result.compared_models]
    print_table("teacher and student on this machine", sizes)
    print_notes(result.warnings)
    print_next(*next_commands(result))


def print_estimate(estimate: Estimate) -> None:
    """Print what a pretraining run would take."""
    print_text(f"{estimate.recipe}: {estimate.parameters:,} parameters, {estimate.examples:,} blocks of training text")
    print_table("text", [{"split": name, **facts} for name, facts in estimate.corpus.items()])
    budget, tokens = duration_text(estimate.seconds), f"{estimate.tokens:,} tokens"
    print_plan(
        {
            "speed": f"{estimate.tokens_per_second:,.0f} tokens/s",
            "": ""
            if estimate.peak_share is None
            else f"{estimate.peak_share:.0%} of the peak of matrix products here (head not counted)",
            "memory": "" if estimate.memory_mb is None else f"{estimate.memory_mb:,.0f} MB at peak",
            "disk": f"{estimate.disk_bytes / 1e6:,.0f} MB in {estimate.folder}",
            "budget": f"{budget}: {tokens}" if estimate.steps is None else "",
            "steps": "" if estimate.steps is None else f"{estimate.steps:,}: {tokens} in {budget}",
        }
    )
    print_line("Only the prepared text was kept.")
