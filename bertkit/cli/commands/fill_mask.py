"""`bertkit fill-mask`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from bertkit.cli import terminal
from bertkit.cli.options import PretrainedOption, argument, option
from bertkit.cli.output import print_line, print_result
from bertkit.errors import UsageError

ORDER = 34
EXAMPLE = 'bertkit fill-mask "The doctors [MASK] in the house." --model demo'


def command(
    texts: Annotated[list[str] | None, argument("Texts with [MASK] for each word to predict.", "TEXT")] = None,
    model: PretrainedOption = ...,  # type: ignore[assignment]
    top: Annotated[int, option("Number of answers per mask.", "K", min=1)] = 5,
    targets: Annotated[str | None, option("Words to score instead of all tokens, e.g. cat,dog.", "WORDS")] = None,
    file: Annotated[str | None, option("File with one text per line; `-` for stdin.", "FILE")] = None,
) -> None:
    """Predict the masked words of texts with a pretrained model.

    Prints the most probable words for each mask, and the text with each of them.
    """
    from bertkit.data.files import read_records
    from bertkit.recipe.records import DataConfig

    if (file is None) == (not texts):
        message = "no text is given" if file is None else "TEXT and --file are both given"
        raise UsageError(message, 'give either a TEXT such as "The [MASK] sleeps." or --file')
    if file is not None:
        texts = [
            record["text"] for _, record in read_records(file, DataConfig(format="lines")) if record["text"].strip()
        ]
    target_words = [word.strip() for word in (targets or "").split(",") if word.strip()]
    if targets is not None and not target_words:
        raise UsageError("--targets has no words", "write e.g. --targets cat,dog")
    from bertkit.workflows.fill_mask import fill_mask

    records = fill_mask(model, texts or [], top=top, targets=target_words)
    print_result({"texts": records}, lambda _: print_answers(records))


def print_answers(records: Iterable[Mapping[str, Any]]) -> None:
    """Print the answers for each mask of each text, the most probable first."""
    for record in records:
        print_line(record["text"])
        for mask in record["masks"]:
            prefix = f"{mask['mask']}  " if len(record["masks"]) > 1 else ""
            width = max(len(answer["word"]) for answer in mask["answers"])
            for answer in mask["answers"]:
                print_line(f"  {prefix}{answer['probability']:7.2%}  {answer['word']:<{width}}  {answer['text']}")
        if not terminal.is_read():
            return
