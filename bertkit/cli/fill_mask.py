"""`bertkit fill-mask`."""

from __future__ import annotations

from typing import Annotated

import typer

from bertkit.cli.options import JsonOption


def fill_mask(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT...", help="Texts with [MASK] where words are asked.", show_default=False),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", help="Hub name, directory, or `demo`: pretrained.", metavar="MODEL", show_default=False
        ),
    ] = ...,  # type: ignore[assignment]
    top: Annotated[int, typer.Option(help="Answers a mask.", metavar="K", min=1)] = 5,
    targets: Annotated[
        str | None,
        typer.Option(help="Tell of these words only, e.g. cat,dog.", metavar="WORDS", show_default=False),
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Texts, one a line; `-` is standard input.", metavar="FILE", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Tell which words a pretrained model expects in a text."""
    from bertkit.data.files import read_records
    from bertkit.errors import UsageError
    from bertkit.recipe import Data

    if (file is None) == (not texts):
        raise UsageError(
            "no text" if file is None else "texts and a --file", 'give e.g. "The [MASK] sleeps.", or --file'
        )
    if file is not None:
        texts = [record["text"] for _, record in read_records(file, Data(format="lines")) if record["text"].strip()]
    words = [word.strip() for word in (targets or "").split(",") if word.strip()]
    if targets is not None and not words:
        raise UsageError("--targets names no word", "give e.g. cat,dog")
    from bertkit.cli import show
    from bertkit.workflows.fill_mask import fill_mask as answer

    show.show_masks(answer(model, texts or [], top=top, targets=words), as_json=json)
