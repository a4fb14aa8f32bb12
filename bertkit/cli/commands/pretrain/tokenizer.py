"""`bertkit pretrain tokenizer`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.commands.pretrain.recipe import DocumentsOption
from bertkit.cli.options import merge_changes, option, output_option, set_option
from bertkit.cli.output import print_line, print_notes, print_result, print_text
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.workflows.tokenizer import TokenizerReport

ORDER = 1
EXAMPLE = "bertkit pretrain tokenizer --data demo --vocabulary-size 400 --output my_tokenizer"


SizeOption = Annotated[
    int | None,
    option("Number of tokens, special tokens included.", "N", "30,522 wordpiece, 50,265 bpe, 30,000 unigram", min=1),
]
FrequencyOption = Annotated[int | None, option("Minimum count of letters and of merged pairs.", "N", "2", min=1)]


def command(
    data: Annotated[str | None, option("Text: hub data set, directory, file or `demo`.", "DATA")] = None,
    recipe: Annotated[str | None, option("Use the text of this pretraining recipe.", "RECIPE")] = None,
    tokenizer_type: Annotated[
        str,
        option(
            "wordpiece (as BERT), bpe (on bytes, as RoBERTa and ModernBERT) or unigram (as ALBERT).",
            "TYPE",
            names=("--type",),
        ),
    ] = "wordpiece",
    output: Annotated[Path, output_option("Folder to write; new or empty.", "DIR")] = ...,  # type: ignore[assignment]
    vocabulary_size: SizeOption = None,
    lowercase: Annotated[
        bool | None,
        option("Lowercase the text or keep its case.", default="cased for bpe only", names=("--lowercase/--cased",)),
    ] = None,
    min_frequency: FrequencyOption = None,
    special: Annotated[list[str] | None, option("Add a special token; repeatable.", "TOKEN")] = None,
    max_length: Annotated[int, option("Maximum tokens per text.", "N", min=4)] = 512,
    limit: DocumentsOption = None,
    changes: Annotated[list[str] | None, set_option("data.*")] = None,
) -> None:
    """Train a tokenizer on text.

    The same text always gives the same files. What the tokenizer does to words is measured on held-out documents.
    """
    from bertkit.recipe import load_pretrain_recipe

    if data is None and recipe is None and not changes:
        raise UsageError("no text is named", "--data FILE, a directory, or a hub data set")
    settings = merge_changes({"data.source": data, "data.limit": limit}, changes)
    # As a recipe reads its text, so that the tokenizer sees what pretraining will.
    corpus = load_pretrain_recipe(recipe or "mlm", settings).data
    from bertkit.tokens.train import make_spec
    from bertkit.workflows.tokenizer import train_tokenizer

    spec = make_spec(
        tokenizer_type,
        vocabulary_size=vocabulary_size,
        lowercase=lowercase,
        min_frequency=min_frequency,
        special=special or (),
        max_length=max_length,
    )
    report = train_tokenizer(corpus, spec, output=output)
    print_result(report, print_tokenizer)


def print_tokenizer(report: TokenizerReport) -> None:
    """Print what a new tokenizer does to held-out text."""
    case = "lowercase" if report.lowercase else "cased"
    print_text(f"{report.folder}: {report.type}, {case}, {report.vocabulary_size:,} tokens")
    print_text(f"  on {report.held_out:,} held-out of {report.documents:,} documents ({report.words:,} words):")
    print_line(f"  tokens per word (fertility)  {report.fertility:7.3f}")
    print_line(f"  single-token words           {report.coverage:7.1%}")
    print_line(f"  unknown tokens               {report.unknown_rate:7.3%}")
    print_line(f"  tokens per document          {report.tokens_per_document:7.1f}")
    print_line(f"  vocabulary unused there      {report.unseen_share:7.1%}")
    print_notes(f"warning: {warning}" for warning in report.warnings)
