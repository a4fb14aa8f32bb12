"""`bertkit pretrain tokenizer` and `bertkit pretrain sizes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import JsonOption, SetOption


def tokenizer(
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="Text: hub data set, directory, file, or `demo`.", metavar="DATA", show_default=False
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="Take the text of a pretraining recipe.", metavar="RECIPE", show_default=False),
    ] = None,
    kind: Annotated[
        str, typer.Option(help="wordpiece (BERT), bpe (bytes: RoBERTa, ModernBERT) or unigram (ALBERT).")
    ] = "wordpiece",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write; new or empty.", metavar="DIR", show_default=False)
    ] = ...,  # type: ignore[assignment]
    vocabulary_size: Annotated[
        int | None,
        typer.Option(
            help="Pieces, special ones among them.",
            metavar="N",
            min=1,
            show_default="30,522 wordpiece, 50,265 bpe, 30,000 unigram",
        ),
    ] = None,
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--cased", help="Whether capitals are made small.", show_default="lowercase; bpe is cased"
        ),
    ] = None,
    min_frequency: Annotated[
        int | None,
        typer.Option(
            help="How often letters (wordpiece) and joined pairs must occur.", metavar="N", min=1, show_default="2"
        ),
    ] = None,
    special: Annotated[
        list[str] | None, typer.Option(help="A special piece more; several times.", metavar="PIECE")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Most pieces of a text.", metavar="N", min=4)] = 512,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Learn a tokenizer from text; the same text gives the same files."""
    from bertkit.errors import UsageError
    from bertkit.recipe import load_pretrain_recipe, parse_changes

    if data is None and recipe is None and not changes:
        raise UsageError("no text is named", "--data FILE, a directory, or a hub data set")
    other: dict[str, Any] = (
        {} if data is None else {"data.source": data, "data.files": {}, "data.config": None, "data.splits": {}}
    )
    corpus = load_pretrain_recipe(recipe or "mlm", {**other, **parse_changes(changes or [])}).data
    from bertkit.cli import show
    from bertkit.workflows.tokenizer import train_tokenizer

    learned = train_tokenizer(
        corpus,
        kind,
        output=output,
        vocabulary_size=vocabulary_size,
        lowercase=lowercase,
        min_frequency=min_frequency,
        special=special or (),
        max_length=max_length,
    )
    show.show_tokenizer(learned, as_json=json)


def sizes(json: JsonOption = False) -> None:
    """List the named sizes of new models."""
    from bertkit.cli import show
    from bertkit.sizes import find_size, size_names

    shapes = {name: find_size(name) for name in size_names()}
    rows = [
        {"size": name, "layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "model": shape.model_type}
        | {"vocabulary": shape.vocabulary, "parameters": shape.parameters}
        for name, shape in shapes.items()
    ]
    show.show_sizes(rows, as_json=json)
