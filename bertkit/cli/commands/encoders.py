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
    language: Annotated[str | None, option("Only encoders for a language, e.g. de.", "CODE")] = None,
    license: Annotated[
        str | None,
        option("Only encoders with this license, e.g. MIT; `open` for all licenses that allow commercial use.", "NAME"),
    ] = None,
    min_tokens: Annotated[int, option("Only encoders that read at least N tokens.", "N", min=0)] = 0,
    max_parameters: Annotated[
        float | None, option("Only encoders with at most N million parameters.", "N", min=0)
    ] = None,
    vectors: Annotated[
        bool | None,
        option(
            "Only encoders that were trained for sentence vectors, or only the others.",
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
    # The uses are sentences, which would make the table too wide, so they are listed below it.
    uses = [row.pop("for") for row in rows]
    print_table("encoders", rows, max_rows=len(rows))
    print_line()
    width = max(len(row["encoder"]) for row in rows)
    for row, use in zip(rows, uses, strict=True):
        print_text(f"  {row['encoder']:<{width}}  {use}")
    if language is not None and any(isinstance(encoder.languages, int) for encoder in encoders):
        print_text("  If a number of languages is given, the card on the Hub lists them.")
