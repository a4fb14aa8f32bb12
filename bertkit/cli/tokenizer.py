"""`bertkit pretrain tokenizer` and `bertkit pretrain sizes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertkit.cli.options import JsonOption, SetOption, load_pretraining

_Text = Annotated[
    str | None,
    typer.Option("--data", help="Text: hub data set, directory, file, or `demo`.", metavar="DATA", show_default=False),
]
_Recipe = Annotated[
    str | None,
    typer.Option("--recipe", help="Take the text of a pretraining recipe.", metavar="RECIPE", show_default=False),
]
_Kind = Annotated[str, typer.Option(help="wordpiece (BERT), bpe (bytes: RoBERTa, ModernBERT) or unigram (ALBERT).")]
_Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder to write; new or empty.", metavar="DIR", show_default=False)
]
_Size = Annotated[
    int | None,
    typer.Option(
        help="Tokens, special ones among them.",
        metavar="N",
        min=1,
        show_default="30,522 wordpiece, 50,265 bpe, 30,000 unigram",
    ),
]
_Lowercase = Annotated[
    bool | None,
    typer.Option("--lowercase/--cased", help="Whether capitals are made small.", show_default="cased for bpe alone"),
]
_Frequency = Annotated[
    int | None,
    typer.Option(help="How often letters and joined pairs must occur.", metavar="N", min=1, show_default="2"),
]
_Limit = Annotated[
    int | None, typer.Option("--limit", help="Use only the first N documents.", metavar="N", show_default=False)
]


def tokenizer(
    data: _Text = None,
    recipe: _Recipe = None,
    kind: _Kind = "wordpiece",
    output: _Output = ...,  # type: ignore[assignment]
    vocabulary_size: _Size = None,
    lowercase: _Lowercase = None,
    min_frequency: _Frequency = None,
    special: Annotated[
        list[str] | None, typer.Option(help="A special token more; several times.", metavar="TOKEN")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Most tokens of a text.", metavar="N", min=4)] = 512,
    limit: _Limit = None,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Learn a tokenizer from text; the same text gives the same files."""
    from bertkit.errors import UsageError

    if data is None and recipe is None and not changes:
        raise UsageError("no text is named", "--data FILE, a directory, or a hub data set")
    corpus = load_pretraining(recipe or "mlm", {"data.source": data, "data.limit": limit}, changes).data
    from bertkit.cli import show
    from bertkit.cli.progress import TerminalProgress
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
        progress=TerminalProgress(),
    )
    show.show_tokenizer(learned, as_json=json)


def sizes(json: JsonOption = False) -> None:
    """List the named sizes of new models."""
    from bertkit.cli import show
    from bertkit.modeling.sizes import find_size, size_names

    shapes = {name: find_size(name) for name in size_names()}
    rows = [
        {"size": name, "layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "model": shape.model_type}
        | {"vocabulary": shape.vocabulary, "parameters": shape.parameters}
        for name, shape in shapes.items()
    ]
    show.show_sizes(rows, as_json=json)
