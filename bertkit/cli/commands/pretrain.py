"""`bertkit pretrain`: pretrain with a recipe, train a tokenizer, list the sizes of new models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.commands.finetune import SmokeOption, check_smoke_options, print_smoke
from bertkit.cli.completion import complete_pretraining_recipe
from bertkit.cli.options import (
    FROM_RECIPE,
    OutputOption,
    RestartOption,
    argument,
    check_recipe_name,
    flag,
    option,
    output_option,
    recipe_options,
    set_option,
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
from bertkit.cli.parsing import ReadableGroup
from bertkit.errors import UsageError
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.recipe.records import PretrainRecipe
    from bertkit.workflows.pretrain_plan import PretrainEstimate
    from bertkit.workflows.pretrain_results import PretrainResult
    from bertkit.workflows.tokenizer import TokenizerReport

ORDER = 15
HELP = (
    "Pretrain an encoder on text, or train a tokenizer for it.\n\n"
    "Start with: bertkit pretrain tokenizer --data text.txt --output tok, then "
    "bertkit pretrain mlm --data text.txt --tokenizer tok --size small"
)


class RecipeOrCommand(ReadableGroup):
    """Group in which `bertkit pretrain mlm` is short for `bertkit pretrain recipe mlm`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments; if they start with `--config`, they belong to `recipe`."""
        return super().parse_args(ctx, ["recipe", *args] if args and args[0].startswith("--config") else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names, or `recipe` with all arguments."""
        # `mlm` is parsed as `recipe mlm`, so a typo is reported as an unknown recipe.
        return super().resolve_command(ctx, args if args[0] in self.commands else ["recipe", *args])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, and then the recipes, which work like commands."""
        from bertkit.recipe.load import load_pretrain_recipe, recipe_names

        super().format_commands(ctx, formatter)
        with formatter.section("Recipes"):
            formatter.write_dl([(name, load_pretrain_recipe(name).about) for name in recipe_names("pretrain")])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the commands and the recipes whose names start with `incomplete`."""
        (recipe, *_) = self.commands["recipe"].params
        return [*super().shell_complete(ctx, incomplete), *recipe.shell_complete(ctx, incomplete)]


DocumentsOption = Annotated[int | None, option("Use only the first N documents.", "N", "all")]
VocabularySizeOption = Annotated[
    int | None,
    option("Vocabulary size, including special tokens.", "N", "30,522 wordpiece, 50,265 bpe, 30,000 unigram", min=1),
]
_CORPUS_HELP = "Set how the text is read, e.g. data.documents=blank_lines; repeatable."
FrequencyOption = Annotated[int | None, option("Minimum count of a letter, and of a pair to merge.", "N", "2", min=1)]


@recipe_options(
    set_option=Annotated[list[str] | None, set_option("data.*", help=_CORPUS_HELP)],
    data=Annotated[str | None, option("Text: Hub dataset, directory, file or `demo`.", "DATA")],
    limit=DocumentsOption,
)
def pretrain_tokenizer(
    changes: dict[str, Any],
    recipe: Annotated[
        str | None,
        option("Pretraining recipe whose text to use.", "RECIPE", autocompletion=complete_pretraining_recipe),
    ] = None,
    tokenizer_type: Annotated[
        str,
        option(
            "Algorithm: wordpiece (as in BERT), bpe (byte-level, as in RoBERTa) or unigram (ALBERT).",
            "TYPE",
            names=("--type",),
        ),
    ] = "wordpiece",
    output: Annotated[Path, output_option("Folder to write; new or empty.", "DIR")] = ...,  # type: ignore[assignment]
    vocabulary_size: VocabularySizeOption = None,
    lowercase: Annotated[
        bool | None,
        option("Lowercase the text or keep its case.", default="cased only for bpe", names=("--lowercase/--cased",)),
    ] = None,
    min_frequency: FrequencyOption = None,
    special: Annotated[list[str] | None, option("Add a special token; repeatable.", "TOKEN")] = None,
    max_length: Annotated[int, option("Maximum tokens per text.", "N", min=4)] = 512,
) -> None:
    """Train a tokenizer on text.

    The same text always gives the same files. Fertility and unknown tokens are measured on held-out documents.
    """
    from bertkit.recipe.load import load_pretrain_recipe

    if recipe is None and not changes.keys() - {"data.limit"}:
        raise UsageError("no text is named", "add --data with a file, a directory or a dataset on the Hub")
    # The recipe defines how the text is read, so that the tokenizer sees the same text as pretraining.
    corpus = load_pretrain_recipe(recipe or "mlm", changes).data
    from bertkit.tokens.train import make_spec
    from bertkit.workflows.tokenizer import train_tokenizer

    spec = make_spec(
        tokenizer_type,
        vocabulary_size=vocabulary_size,
        lowercase=lowercase,
        min_frequency=min_frequency,
        special=special or (),
        max_length=max_length,
    )
    report = train_tokenizer(corpus, spec, output=output)
    print_result(report, print_tokenizer)


def print_tokenizer(report: TokenizerReport) -> None:
    """Print a new tokenizer and its figures on held-out text."""
    case = "lowercase" if report.lowercase else "cased"
    print_text(f"{report.folder}: {report.type}, {case}, {report.vocabulary_size:,} tokens")
    print_text(f"  on {report.held_out:,} held-out of {report.documents:,} documents ({report.words:,} words):")
    # A fertility above 1 means longer inputs and, in most languages, lower scores (Rust et al. 2021).
    print_line(f"  tokens per word (fertility)  {report.fertility:7.3f}")
    print_line(f"  single-token words           {report.coverage:7.1%}")
    print_line(f"  unknown tokens               {report.unknown_rate:7.3%}")
    print_line(f"  tokens per document          {report.tokens_per_document:7.1f}")
    print_line(f"  unused vocabulary            {report.unseen_share:7.1%}")
    print_notes(f"warning: {warning}" for warning in report.warnings)


def list_sizes() -> None:
    """List the named sizes of new models."""
    from bertkit.modeling.sizes import read_sizes

    sizes = read_sizes()
    rows = [
        {"size": name, "layers": size.layers, "hidden": size.hidden, "heads": size.heads, "model": size.model_type}
        | {"vocabulary": size.vocab_size, "parameters": size.parameters}
        for name, size in sizes.items()
    ]
    printed_rows = [row | {"parameters": f"{sizes[str(row['size'])].parameters / 1e6:,.1f}M"} for row in rows]
    title = "sizes, with the vocabulary of the published encoder"
    print_result({"sizes": rows}, lambda _: print_table(title, printed_rows, max_rows=len(rows)))


PretrainingRecipeArgument = Annotated[
    str,
    argument(
        "A shipped recipe (see `bertkit pretrain --help`) or a YAML file.",
        "RECIPE",
        callback=check_recipe_name,
        autocompletion=complete_pretraining_recipe,
    ),
]
CorpusOption = Annotated[str | None, option("Text: Hub dataset, directory, file or `demo`.", "DATA", FROM_RECIPE)]
SizeOption = Annotated[str | None, option("Size of a new model; see `bertkit pretrain sizes`.", "SIZE", FROM_RECIPE)]
TokenizerOption = Annotated[str | None, option("Tokenizer of a new model: folder or Hub name.", "DIR", False)]
StepsOption = Annotated[int | None, option("Number of optimizer steps of pretraining.", "N", FROM_RECIPE)]


@recipe_options(
    "learning_rate",
    "seed",
    "report_to",
    data=CorpusOption,
    model=Annotated[str | None, option("Checkpoint to continue from, or to distill.", "MODEL", False)],
    size=SizeOption,
    tokenizer=TokenizerOption,
    steps=StepsOption,
    epochs=Annotated[float | None, option("Passes over the text.", "NUMBER", False)],
    budget=Annotated[str | None, option("Training time instead of steps: 90s, 30m, 2h, 1d.", "TIME", False)],
    batch_size=Annotated[int | None, option("Blocks per optimizer step.", "N", FROM_RECIPE)],
    max_length=Annotated[int | None, option("Maximum tokens per block.", "N", FROM_RECIPE)],
    limit=DocumentsOption,
    workers=Annotated[
        int | None, option("Number of processes that prepare batches, without effect on the result.", "N", FROM_RECIPE)
    ],
)
def pretrain_recipe(
    recipe: PretrainingRecipeArgument,
    changes: dict[str, Any],
    output: OutputOption = None,
    dry_run: Annotated[bool, flag("--dry-run", "Prepare the text, time some steps and estimate the run.")] = False,
    smoke_test: SmokeOption = False,
    restart: RestartOption = False,
) -> None:
    """Pretrain an encoder on text with a recipe.

    After an interruption, the same command resumes the run. The result is a checkpoint for `bertkit finetune`.
    Options override the recipe.
    """
    from bertkit.recipe.load import load_pretrain_recipe

    loaded_recipe = load_pretrain_recipe(recipe, changes)
    run_pretraining(loaded_recipe, output, dry_run=dry_run, smoke_test=smoke_test, restart=restart)


def run_pretraining(
    recipe: PretrainRecipe, output: Path | None, *, dry_run: bool, smoke_test: bool, restart: bool
) -> None:
    """Test, estimate or run a pretraining, and print the result."""
    if smoke_test:
        check_smoke_options(output=output, dry_run=dry_run, restart=restart)
        from bertkit.workflows.trial_run import smoke_pretrain

        print_smoke(smoke_pretrain(recipe))
    elif dry_run:
        from bertkit.workflows.pretrain_plan import estimate

        plan = estimate(recipe, output=output, restart=restart)
        print_result(plan, print_estimate)
    else:
        from bertkit.workflows.pretrain import pretrain

        result = pretrain(recipe, output=output, restart=restart)
        print_result(result, print_pretrained)


def print_pretrained(result: PretrainResult) -> None:
    """Print the scores of a pretraining run and the commands that a user may want to run next."""
    from bertkit.metrics.baselines import find_best_baseline, tabulate
    from bertkit.workflows.pretrain_results import next_commands

    print_text(
        f"{result.recipe}: {result.model}, {result.parameters:,} parameters, {result.steps:,} steps, "
        f"{result.tokens:,} tokens in {duration_text(result.seconds)}"
    )
    print_line(f"  {'held-out documents':<23} {result.corpus['validation']['documents']:7,}")
    for name, score in result.scores.items():
        # Masked tokens are often frequent ones, so the baseline of the accuracy is well above 0.
        strongest_name, value = find_best_baseline(result.baselines, name)
        baseline = "" if value is None else f"  baseline {format_number(value):>7} ({strongest_name})"
        print_text(f"  {name:<23} {format_number(score):>7}{baseline}")
    print_table("baselines", tabulate(result.baselines))
    sizes = [size_cells(model["role"], model, unit="block") for model in result.compared_models]
    print_table("teacher and student on this machine", sizes)
    print_notes(result.warnings)
    print_next(*next_commands(result))


def print_estimate(estimate: PretrainEstimate) -> None:
    """Print the estimated time and memory of a pretraining run."""
    print_text(f"{estimate.recipe}: {estimate.parameters:,} parameters, {estimate.examples:,} blocks of training text")
    print_table("text", [{"split": split, **counts} for split, counts in estimate.corpus.items()])
    duration = duration_text(estimate.seconds)
    tokens = f"{estimate.tokens:,} tokens"
    print_plan(
        {
            "speed": f"{estimate.tokens_per_second:,.0f} tokens/s",
            "": ""
            if estimate.peak_share is None
            else f"{estimate.peak_share:.0%} of the peak speed of matrix products (without the head)",
            "memory": "" if estimate.memory_mb is None else f"{estimate.memory_mb:,.0f} MB at peak",
            "disk": f"{estimate.disk_bytes / 1e6:,.0f} MB in {estimate.folder}",
            # With a budget, the speed determines the tokens; with steps, it determines the time.
            "budget": f"{duration}: {tokens}" if estimate.steps is None else "",
            "steps": "" if estimate.steps is None else f"{estimate.steps:,}: {tokens} in {duration}",
        }
    )
    print_line("Only the prepared text was kept.")


GROUP = RecipeOrCommand


_DEMO = "--data demo --vocabulary-size 400 --output my_tokenizer"
COMMANDS = {
    "tokenizer": (pretrain_tokenizer, f"bertkit pretrain tokenizer {_DEMO}"),
    "sizes": (list_sizes, "bertkit pretrain sizes"),
    "recipe": (pretrain_recipe, "bertkit pretrain mlm --data text.txt --tokenizer tok --size small"),
}
