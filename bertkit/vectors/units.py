"""Units of a vector: a text, each of its words or tokens, or a target word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bertkit.data.columns import ColumnSpec
from bertkit.errors import DataError, UsageError
from bertkit.progress import get_progress, stage
from bertkit.recipe.sections import Row
from bertkit.tokens.features import find_template, tokenize_texts
from bertkit.vectors.batches import split_texts
from bertkit.vectors.embedder import Embedder

if TYPE_CHECKING:
    import numpy as np

_TOKENS = 16_384  # per group, whose hidden states are in memory together


@dataclass(frozen=True)
class UnitVectors:
    """Vectors, float32 of shape (vectors, dimension), and the row and word of each."""

    vectors: np.ndarray
    rows: Sequence[int]
    """Index of the row of each vector, ascending."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Name -> a value per vector, such as its word."""


@dataclass(frozen=True)
class Unit:
    """How rows are read and turned into vectors."""

    columns: ColumnSpec
    read: Callable[[Row], Any]
    """Function that checks the canonical columns of a row, and returns its text or words."""
    encode: Callable[[Embedder, Sequence[Any]], UnitVectors]
    max_characters: int
    """Number of characters after which a part ends and is written."""


def _read_text(row: Row) -> str:
    text = row["text"]
    if not isinstance(text, str):
        raise DataError(f"{str(text)[:60]!r} is not text", "texts must be strings", column="text")
    return text


def _read_words(row: Row) -> list[str]:
    from bertkit.tokens.words import read_words, split_text

    if "tokens" in row or isinstance(row["text"], (list, tuple)):
        return read_words(row.get("tokens", row.get("text")))
    text = _read_text(row)
    return [text[start:end] for start, end in split_text(text)]


def _read_target(row: Row) -> tuple[list[str], int]:
    from bertkit.tokens.words import read_target_word

    return read_target_word(row)


def _encode_texts(embedder: Embedder, texts: Sequence[str]) -> UnitVectors:
    return UnitVectors(embedder.encode(texts), range(len(texts)))


def _encode_tokens(embedder: Embedder, texts: Sequence[str]) -> UnitVectors:
    ids = [encoding.ids for encoding in tokenize_texts(embedder.tokenizer, texts)]
    result = _encode_spans(embedder, [[[token] for token in text] for text in ids])
    return _add_column(result, "token", [embedder.tokenizer.convert_ids_to_tokens(text) for text in ids])


def _encode_words(embedder: Embedder, rows: Sequence[list[str]]) -> UnitVectors:
    return _add_column(_encode_spans(embedder, _tokenize_words(embedder, rows)), "word", rows)


def _encode_targets(embedder: Embedder, rows: Sequence[tuple[list[str], int]]) -> UnitVectors:
    words = [row_words for row_words, _ in rows]
    tokens = _tokenize_words(embedder, words)
    for (row_words, target), row_tokens in zip(rows, tokens, strict=True):
        if not row_tokens[target]:
            raise DataError(f"the target word {row_words[target]!r} has no visible character", "correct the row")
    return _add_column(_encode_spans(embedder, tokens, targets=[target for _, target in rows]), "word", words)


def _add_column(result: UnitVectors, name: str, row_values: Sequence[Sequence[str]]) -> UnitVectors:
    """Return vectors with one more column, from the words or tokens of each row."""
    positions = zip(result.rows, result.columns["index"], strict=True)
    values = [row_values[row][index] for row, index in positions]
    return UnitVectors(result.vectors, result.rows, {**result.columns, name: values})


def _tokenize_words(embedder: Embedder, rows: Sequence[list[str]]) -> list[list[list[int]]]:
    from bertkit.tokens.words import tokenize_words

    # A word of at most half a window leaves room for context, and windows overlap by half.
    return tokenize_words(embedder.tokenizer, rows, max_tokens=max(1, embedder.tokenizer.model_max_length // 2))


def _encode_spans(
    embedder: Embedder,
    rows: Sequence[Sequence[Sequence[int]]],
    targets: Sequence[int] | None = None,
) -> UnitVectors:
    """Compute the mean hidden state of each word of rows that are given as words and their token ids.

    A row that is too long is read in windows that overlap by half; each word's vector comes from the window with the
    most context. With `targets`, only one word of each row counts.
    """
    import numpy as np

    from bertkit.tokens.words import split_windows
    from bertkit.vectors.vector_files import to_unit_length

    template = find_template(embedder.tokenizer, pair=False)
    budget = embedder.tokenizer.model_max_length - template.size
    # 1. Cut rows into windows, and note the words of each: (row, word, its first token in the window, its tokens).
    features, spans = [], []
    for row, tokens in enumerate(rows):
        for window in split_windows(tokens, budget, budget // 2):
            # `split_windows` lists each word only in the window with most context.
            words = zip(window.words, window.positions, strict=True)
            window_spans = [
                (row, word, len(template.before) + start, len(tokens[word]))
                for word, start in words
                if targets is None or word == targets[row]
            ]
            if window_spans:
                features.append(template.fill(window.tokens))
                spans.append(window_spans)
    # 2. Compute hidden states in groups of windows, and keep only the means over the tokens of each word.
    word_vectors: dict[tuple[int, int], Any] = {}
    with stage("embedding", len(features)):
        for begin, end in split_texts([feature["input_ids"] for feature in features], _TOKENS):
            states = embedder.states(features[begin:end])
            for window_spans, window_states in zip(spans[begin:end], states, strict=True):
                for row, word, start, length in window_spans:
                    word_vectors[row, word] = window_states[start : start + length].mean(axis=0)
            get_progress().update(end, {})
    # 3. Order the vectors by row and word, because windows of a row overlap.
    order = sorted(word_vectors)
    vectors = np.stack([word_vectors[key] for key in order]) if order else np.zeros((0, 0), dtype=np.float32)
    if embedder.normalize:
        vectors = to_unit_length(vectors)
    return UnitVectors(vectors, [row for row, _ in order], {"index": [word for _, word in order]})


_IN_WORDS = ColumnSpec(inputs=("tokens",), gold="", lists=("tokens",), fallback_columns={"tokens": "text"})
_TARGET = ColumnSpec(
    inputs=("tokens", "target"),
    gold="",
    lists=("tokens", "target"),
    fallback_columns={"tokens": "text"},
    always_fall_back=True,
)

UNITS: Mapping[str, Unit] = {
    "text": Unit(ColumnSpec(inputs=("text",), gold=""), _read_text, _encode_texts, 1 << 26),
    "word": Unit(_IN_WORDS, _read_words, _encode_words, 1 << 17),
    "token": Unit(ColumnSpec(inputs=("text",), gold=""), _read_text, _encode_tokens, 1 << 17),
    "target": Unit(_TARGET, _read_target, _encode_targets, 1 << 22),
}
"""Name -> unit of a vector."""


def check_unit(unit: str, embedder: Embedder) -> None:
    """Check that the options of an embedder make sense for words and tokens, which are neither pooled nor prompted.

    Raises:
        UsageError: If an option does not make sense.
    """
    if unit == "text":
        return
    options = {"--pooling": embedder.pooling, "--dimension": embedder.dimension, "--prompt": embedder.prompt}
    options["--prompt-text"] = embedder.prefix
    name = next((name for name, value in options.items() if value is not None), None)
    if name is not None:
        raise UsageError(f"{name} with --unit {unit}", f"{name} is for complete texts")
    if embedder.unknown:
        message = f"the model has custom modules: {', '.join(embedder.unknown)}"
        raise UsageError(message, "only complete texts can be embedded", file=embedder.folder)
