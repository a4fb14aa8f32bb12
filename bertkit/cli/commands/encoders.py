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
    language: Annotated[str | None, option("Only those for a language, e.g. de.", "CODE")] = None,
    license: Annotated[
        str | None, option("Only those with this license, e.g. MIT; `open` for all that allow commercial use.", "NAME")
    ] = None,
    min_tokens: Annotated[int, option("Only those that read inputs of at least N tokens.", "N", min=0)] = 0,
    max_parameters: Annotated[float | None, option("Only those with at most N million parameters.", "N", min=0)] = None,
    vectors: Annotated[
        bool | None,
        option(
            "Only those that were trained for vectors of sentences, or only the others.",
            names=("--vectors/--no-vectors",),
        ),
    ] = None,
) -> None:
    """List published encoders and what each is for.

    Any encoder that transformers has a class for will do, and need not be listed here.
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
    uses = [row.pop("for") for row in rows]
    print_table("encoders", rows, max_rows=len(rows))
    print_line()
    width = max(len(row["encoder"]) for row in rows)
    for row, use in zip(rows, uses, strict=True):
        print_text(f"  {row['encoder']:<{width}}  {use}")
    if language is not None and any(isinstance(encoder.languages, int) for encoder in encoders):
        print_text("  Of those with a number of languages, the card on the hub says whether yours is one of them.")
