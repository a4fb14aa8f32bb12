"""Show the tokens of a text, or measure how tokenizers split the texts of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from bertkit.analysis import tokenization
from bertkit.analysis.tokenization import TextFigures, TextTokenizer, TextTokens, load_text_tokenizer
from bertkit.data.files import guess_format, read_records
from bertkit.errors import DataError, UsageError
from bertkit.progress import stage
from bertkit.recipe.records import DataConfig
from bertkit.recipe.sections import expand_path
from bertkit.storage import hub
from bertkit.vectors.text_files import get_text


def is_file(source: str) -> bool:
    """Return whether a source is a file: an existing file, ``-``, or a name with the extension of a known format."""
    with suppress(OSError):  # A text can be longer than a file name.
        if expand_path(source).is_file():
            return True
    return source == "-" or (" " not in source and guess_format(source)[0] is not None)


def tokenize_text(text: str, models: Sequence[str], *, pair: str | None = None) -> list[TextTokens]:
    """Tokenize a text, or a pair, with the tokenizer of each model.

    Raises:
        BertkitError: If a model cannot be found or has no tokenizer; see `bertkit.errors`.
    """
    return [tokenization.tokenize_text(tokenizer, text, pair) for tokenizer in _load_tokenizers(models)]


def measure_file(file: str, models: Sequence[str], *, data: DataConfig | None = None) -> list[TextFigures]:
    """Measure how the tokenizer of each model splits the texts of a file.

    Args:
        file: File with one text per row; ``-`` for standard input.
        models: Models whose tokenizers are measured on the same texts.
        data: Layout of the file and the column of the texts.

    Raises:
        BertkitError: If the file or a model cannot be read; see `bertkit.errors`.
    """
    # 1. Read the first text, so that a wrong file or column is reported before tokenizers are loaded.
    texts = _read_texts(file, data or DataConfig())
    first_text = next(texts, None)
    if first_text is None:
        raise DataError("the file has no texts", "name another file", file=file)

    # 2. Measure all tokenizers in one pass, because the file can be standard input.
    tokenizers = _load_tokenizers(models)
    with stage("tokenizing", total=1):
        return tokenization.measure_texts(tokenizers, chain([first_text], texts))


def _load_tokenizers(models: Sequence[str]) -> list[TextTokenizer]:
    if len(set(models)) < len(models):
        raise UsageError("a model is named twice", "name different models")
    with hub.without_weights():
        return [load_text_tokenizer(Path(hub.find_model(name)), name) for name in models]


def _read_texts(file: str, data: DataConfig) -> Iterator[str]:
    column = data.columns.get("text", "text")
    if not isinstance(column, str):
        raise UsageError("a text has one column", "name it with --column")
    for line, values in islice(read_records(file, data), data.limit):
        value = values.get(column)
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            yield " ".join(value)  # the words of a CoNLL row
        else:
            yield get_text((line, values), column, file)
