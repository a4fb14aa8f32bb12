"""`bertkit similar`."""

from __future__ import annotations

from typing import Annotated

from bertkit.cli.options import EncoderOption, PoolingOption, PromptOption, RecordsOption, argument, option
from bertkit.cli.output import print_line, print_records, print_result
from bertkit.errors import UsageError

ORDER = 41
EXAMPLE = 'bertkit similar "How old are you?" "What is your age?" --model sentence-transformers/all-MiniLM-L6-v2'


def command(
    texts: Annotated[
        list[str],
        argument(
            "Two texts; or a file with a pair per row, in any format that `predict` reads, or `-` for stdin.",
            "TEXT TEXT | FILE",
        ),
    ],
    model: EncoderOption,
    column: Annotated[str, option("Column with the first texts.", "NAME")] = "text",
    pair_column: Annotated[str, option("Column with the second texts.", "NAME")] = "text_pair",
    pooling: PoolingOption = None,
    prompt: PromptOption = None,
    output: RecordsOption = None,
) -> None:
    """Say how similar two texts are: the cosine of their vectors.

    For a file, the output is one record per row, in the order of the rows, with the column `cosine`.
    """
    from bertkit.recipe import typed_path
    from bertkit.vectors.embedder import Embedder
    from bertkit.workflows.similar import read_pairs, similar

    if len(texts) > 2:
        raise UsageError(f"{len(texts)} texts", "give two, or a file with a pair per row")
    if len(texts) == 2 and output is not None:
        raise UsageError("--output with two texts", "it is for the pairs of a file")
    if not all(text.strip() for text in texts):
        raise UsageError("an empty text", "give two texts, or a file")
    embedder = Embedder(model, pooling=pooling, prompt=prompt)
    if len(texts) == 2:
        first, second = texts
        (result,) = similar(embedder, [({"text": first, "text_pair": second}, first, second)])
        print_result(result, lambda _: print_line(f"{result['cosine']:.4f}"))
        return
    pairs = read_pairs(texts[0], (column, pair_column))
    records = similar(embedder, pairs)
    print_records("pairs", records, output, [("the file of pairs", typed_path(texts[0]))])
