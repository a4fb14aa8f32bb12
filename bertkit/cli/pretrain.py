"""`bertkit pretrain`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bertkit.cli.options import JsonOption, MaxLengthOption, OutputOption, SetOption, load_pretraining


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


@app.command("recipe", epilog="Example: bertkit pretrain mlm --data text.txt --tokenizer tok --size small")
def pretrain(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="mlm, span, bert, albert, electra, distilbert, or a YAML file.")
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", help="Text: file, directory, hub data set, `demo`.", metavar="DATA", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Go on from this checkpoint.", metavar="MODEL", show_default=False),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Shape of a new model; see `bertkit pretrain sizes`.", metavar="SIZE", show_default=False),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Tokenizer of a new model: folder or hub name.", metavar="DIR", show_default=False),
    ] = None,
    output: OutputOption = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.", show_default=False)] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the text.", show_default=False)] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Train for so long: 90s, 30m, 2h, 1d.", metavar="TIME", show_default=False),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Blocks per optimizer step.", show_default=False)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate.", show_default=False)] = None,
    max_length: MaxLengthOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness.", show_default=False)] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", help="Use only the first N documents.", metavar="N", show_default=False),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that make batches; the result is the same.", show_default=False)
    ] = None,
    changes: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Prepare the text, time some steps, tell what all would take.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Move an old run in the folder aside and start anew.")] = False,
    json: JsonOption = False,
) -> None:
    """Pretrain an encoder on text as a recipe says.

    The same command goes on after any interruption. The result is a checkpoint for `bertkit finetune`.
    """
    settings = {
        "model": model,
        "size": size,
        "tokenizer": tokenizer,
        "data.source": data,
        "data.limit": limit,
        "training.steps": steps,
        "training.epochs": epochs,
        "training.budget": budget,
        "training.batch_size": batch_size,
        "training.learning_rate": learning_rate,
        "training.max_length": max_length,
        "training.seed": seed,
        "training.workers": workers,
    }
    loaded = load_pretraining(recipe, settings, changes)
    from bertkit.cli import show_pretraining as show
    from bertkit.cli.progress import TerminalProgress
    from bertkit.workflows import pretrain as workflow

    if dry_run:
        show.show_outlook(workflow.outlook(loaded, progress=TerminalProgress()), as_json=json)
    else:
        result = workflow.pretrain(loaded, output=output, fresh=fresh, progress=TerminalProgress())
        show.show_pretrained(result, as_json=json)
