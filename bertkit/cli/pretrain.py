"""`bertkit pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bertkit.cli import tokenizer as tokenizers
from bertkit.cli.options import (
    FreshOption,
    JsonOption,
    LearningRateOption,
    MaxLengthOption,
    OutputOption,
    SeedOption,
    SetOption,
    common_settings,
    load_pretraining,
)


class RecipeOrCommand(TyperGroup):
    """A group in which a word that names no command is a recipe, so that `bertkit pretrain mlm` needs no more."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Give the command of the first word, or the one that pretrains."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["recipe", *args])


app = typer.Typer(
    cls=RecipeOrCommand,
    help="Pretrain an encoder on text by a recipe, and what belongs to it.\n\n"
    "Start: bertkit pretrain tokenizer --data text.txt --output tok, then "
    "bertkit pretrain mlm --data text.txt --tokenizer tok --size small",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _option(help: str, metavar: str | None = None) -> Any:
    """Make an option whose default is the recipe's."""
    return typer.Option(help=help, metavar=metavar, show_default=False)


app.command(
    "tokenizer",
    epilog="Example: bertkit pretrain tokenizer --data demo --vocabulary-size 400 --output my_tokenizer",
)(tokenizers.tokenizer)
app.command("sizes", epilog="Example: bertkit pretrain sizes")(tokenizers.sizes)


@app.command("recipe", epilog="Example: bertkit pretrain mlm --data text.txt --tokenizer tok --size small")
def pretrain(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="mlm, span, bert, albert, electra, distilbert, or a YAML file.")
    ],
    data: Annotated[str | None, _option("Text: file, directory, hub data set, `demo`.", "DATA")] = None,
    model: Annotated[str | None, _option("Go on from this checkpoint.", "MODEL")] = None,
    size: Annotated[str | None, _option("Shape of a new model; see `bertkit pretrain sizes`.", "SIZE")] = None,
    tokenizer: Annotated[str | None, _option("Tokenizer of a new model: folder or hub name.", "DIR")] = None,
    output: OutputOption = None,
    steps: Annotated[int | None, _option("Optimizer steps.")] = None,
    epochs: Annotated[float | None, _option("Passes over the text.")] = None,
    budget: Annotated[str | None, _option("Train for so long: 90s, 30m, 2h, 1d.", "TIME")] = None,
    batch_size: Annotated[int | None, _option("Blocks per optimizer step.")] = None,
    learning_rate: LearningRateOption = None,
    max_length: MaxLengthOption = None,
    seed: SeedOption = None,
    limit: Annotated[int | None, _option("Use only the first N documents.", "N")] = None,
    workers: Annotated[int | None, _option("Processes that make batches; the result is the same.")] = None,
    changes: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Prepare the text, time some steps, tell what all would take.")
    ] = False,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Pretrain an encoder on text as a recipe says.

    The same command goes on after any interruption. The result is a checkpoint for `bertkit finetune`.
    """
    settings = {
        **common_settings(data, limit, epochs, learning_rate, batch_size, max_length, seed),
        "model": model,
        "size": size,
        "tokenizer": tokenizer,
        "training.steps": steps,
        "training.budget": budget,
        "training.workers": workers,
    }
    run_pretraining(recipe, settings, changes, output=output, dry_run=dry_run, fresh=fresh, json=json)


def run_pretraining(
    recipe: str,
    settings: dict[str, Any],
    changes: list[str] | None,
    *,
    output: Path | None,
    dry_run: bool,
    fresh: bool,
    json: bool,
) -> None:
    """Pretrain as a recipe with these settings says, or tell what that would take."""
    loaded = load_pretraining(recipe, settings, changes)
    from bertkit.cli import show_pretraining as show
    from bertkit.cli.progress import TerminalProgress

    if dry_run:
        from bertkit.workflows.steps.estimate import estimate

        show.show_estimate(estimate(loaded, progress=TerminalProgress()), as_json=json)
    else:
        from bertkit.workflows.pretrain import pretrain as run

        result = run(loaded, output=output, fresh=fresh, progress=TerminalProgress())
        show.show_pretrained(result, as_json=json)
