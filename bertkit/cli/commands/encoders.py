"""`bertkit encoders`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import option
from bertkit.cli.output import print_line, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.storage.hub.encoders import PublishedEncoder

ORDER = 61
EXAMPLE = "bertkit encoders --language en --max-parameters 50"


def command(
    language: Annotated[str | None, option("Language that the encoders must support, e.g. de.", "CODE")] = None,
    license: Annotated[
        str | None,
        option("License, e.g. MIT; `open` for every license that allows commercial use.", "NAME"),
    ] = None,
    min_tokens: Annotated[int, option("Minimum number of tokens that the encoders read.", "N", min=0)] = 0,
    max_parameters: Annotated[float | None, option("Maximum number of parameters, in millions.", "N", min=0)] = None,
    vectors: Annotated[
        bool | None,
        option(
            "List only encoders that were trained for sentence vectors, or only the others.",
            names=("--vectors/--no-vectors",),
        ),
    ] = None,
) -> None:
    """List published encoders and their uses.

    Other encoders work, too, if transformers has a class for them.
    """
    from bertkit.storage.hub.encoders import list_encoders

    encoders = list_encoders(
        language=language,
        license=license,
        min_tokens=min_tokens,
        max_parameters=max_parameters,
        vectors=vectors,
    )
    print_result({"encoders": encoders}, lambda _: _print_encoders(encoders, language))


def _print_encoders(encoders: list[PublishedEncoder], language: str | None) -> None:
    from bertkit.storage.hub.encoders import as_table

    if not encoders:
        print_line("no encoder meets all conditions; leave one out")
        return
    rows = as_table(encoders)
    # The uses are sentences, too wide for the table, so they are printed below it.
    uses = [row.pop("for") for row in rows]
    print_table("encoders", rows, max_rows=len(rows))
    print_line()
    width = max(len(row["encoder"]) for row in rows)
    for row, use in zip(rows, uses, strict=True):
        print_text(f"  {row['encoder']:<{width}}  {use}")
    if language is not None and any(isinstance(encoder.languages, int) for encoder in encoders):
        print_text("  If only the count of languages is shown, the model card on the Hub lists them.")
