"""Tokens of a text, and measurements of how tokenizers split the texts of a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.modeling.architectures import find_architecture
from bertkit.modeling.tokenizer import read_tokenizer
from bertkit.tokens.fast_tokenizer import configure_for_plain_text, read_fast_tokenizer, read_json
from bertkit.tokens.splitting import Splitting, find_words

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_LIMITS = (128, 256, 512)
_BATCH_SIZE = 256


@dataclass(frozen=True)
class TokenizerInfo:
    """Properties of a tokenizer."""

    model: str
    type: str
    """Algorithm, such as ``WordPiece``."""
    vocabulary: int
    """Number of tokens."""
    max_tokens: int | None
    """Maximum tokens that the model reads, or None if no file of the tokenizer states it."""


@dataclass(frozen=True)
class TextTokenizer:
    """The tokenizer of a model."""

    info: TokenizerInfo
    tokenizer: Tokenizer
    unknown_id: int | None
    has_segments: bool


@dataclass(frozen=True)
class Token:
    """A token of a text; a special token has no word and no characters."""

    token: str
    id: int
    segment: int
    is_special: bool
    start: int | None
    """Offset of the first character in the text."""
    end: int | None
    """Offset after the last character."""
    word: int | None
    """Index of the word in the text, as the tokenizer splits words."""
    text: str
    """Characters of the token."""


@dataclass(frozen=True)
class TextTokens(TokenizerInfo):
    """The tokens of a text, or of a pair of texts, as a model reads them."""

    words: int
    unknown: int
    tokens: list[Token]


@dataclass(frozen=True)
class TextFigures(TokenizerInfo):
    """Measurements of the texts of a file. Lengths are in tokens, including special tokens."""

    texts: int
    words: int
    fertility: float
    """Tokens per word."""
    coverage: float
    """Fraction of words that are a single token."""
    unknown_rate: float
    """Fraction of tokens that are unknown tokens."""
    vocabulary_seen: float
    """Fraction of the vocabulary that occurs in the texts."""
    tokens: int
    """Number of tokens, without special tokens."""
    mean_length: float
    median_length: int
    length_99: int
    """Length that 99% of the texts do not exceed."""
    longest: int
    truncated: dict[int, float]
    """Maximum length -> fraction of texts that are longer."""
    lost: dict[int, float]
    """Maximum length -> fraction of tokens that are truncated."""


def load_text_tokenizer(folder: Path, name: str) -> TextTokenizer:
    """Load the tokenizer of a model's folder, without torch if it has a ``tokenizer.json``.

    Raises:
        ModelError: If it is missing or damaged.
        UnavailableError: If it needs a package that is not installed.
    """
    tokenizer = read_fast_tokenizer(folder)
    if tokenizer is None:
        tokenizer = configure_for_plain_text(read_tokenizer(folder).backend_tokenizer)
    config, settings = read_json(folder / "config.json"), read_json(folder / "tokenizer_config.json")
    limit = settings.get("model_max_length")
    # transformers writes 10^30 for "no limit".
    limits = [int(limit)] if isinstance(limit, (int, float)) and limit < 1e9 else []
    if isinstance(num_positions := config.get("max_position_embeddings"), int) and num_positions > 0:
        padding, architecture = config.get("pad_token_id"), find_architecture(str(config.get("model_type")))
        # The first position of RoBERTa is the id of its padding token + 1.
        offset = padding + 1 if isinstance(padding, int) and architecture.positions_follow_padding_id else 0
        limits.append(num_positions - offset)
    # A model with one segment, such as RoBERTa, has no embedding for a second one.
    has_segments = config.get("type_vocab_size", 2) != 1
    algorithm, vocabulary = type(tokenizer.model).__name__, int(tokenizer.get_vocab_size())
    info = TokenizerInfo(name, algorithm, vocabulary, min(limits, default=None))
    return TextTokenizer(info, tokenizer, _find_unknown(tokenizer), has_segments)


def _find_unknown(tokenizer: Tokenizer) -> int | None:
    """Return the id of the unknown token, or None if the tokenizer has none."""
    token = getattr(tokenizer.model, "unk_token", None)
    if token is not None:
        return tokenizer.token_to_id(token)
    unigram_id = getattr(tokenizer.model, "unk_id", None)
    return None if unigram_id is None else int(unigram_id)


def tokenize_text(tokenizer: TextTokenizer, text: str, pair: str | None = None) -> TextTokens:
    """Tokenize a text, or a pair of texts, with the special tokens that a model reads."""
    tokens = _list_tokens(tokenizer.tokenizer.encode(text, pair), (text, pair or ""), tokenizer.has_segments)
    words = len(find_words(text)) + len(find_words(pair or ""))
    unknown = sum(token.id == tokenizer.unknown_id for token in tokens)
    return TextTokens(**vars(tokenizer.info), words=words, unknown=unknown, tokens=tokens)


def _list_tokens(encoding: Encoding, texts: tuple[str, str], has_segments: bool) -> list[Token]:
    columns = (encoding.tokens, encoding.ids, encoding.type_ids, encoding.sequence_ids, encoding.offsets)
    tokens = []
    for token, token_id, segment, index, (start, end), word in zip(*columns, encoding.word_ids, strict=True):
        location = (None, None, word, "") if index is None else (start, end, word, texts[index][start:end])
        tokens.append(Token(token, token_id, segment if has_segments else 0, index is None, *location))
    return tokens


def measure_texts(tokenizers: Sequence[TextTokenizer], texts: Iterable[str]) -> list[TextFigures]:
    """Measure how tokenizers split texts; the texts are read once for all tokenizers."""
    totals = [(tokenizer, Splitting(), list[int]()) for tokenizer in tokenizers]
    texts = iter(texts)
    while batch := list(islice(texts, _BATCH_SIZE)):
        for tokenizer, splitting, lengths in totals:
            special = tokenizer.tokenizer.num_special_tokens_to_add(is_pair=False)
            encodings = tokenizer.tokenizer.encode_batch(batch, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                splitting.add(text, encoding.ids, encoding.offsets, tokenizer.unknown_id)
                lengths.append(len(encoding.ids) + special)
    return [_summarize(*total) for total in totals]


def _summarize(tokenizer: TextTokenizer, splitting: Splitting, token_counts: Sequence[int]) -> TextFigures:
    import numpy as np

    lengths = np.array(token_counts or [0])
    limits = sorted({*_LIMITS, tokenizer.info.max_tokens or _LIMITS[0]})
    return TextFigures(
        **vars(tokenizer.info),
        texts=splitting.texts,
        **splitting.figures(),
        vocabulary_seen=len(splitting.seen) / max(tokenizer.info.vocabulary, 1),
        tokens=splitting.tokens,
        mean_length=float(lengths.mean()),
        median_length=int(np.quantile(lengths, 0.5, method="higher")),
        length_99=int(np.quantile(lengths, 0.99, method="higher")),
        longest=int(lengths.max()),
        truncated={limit: float((lengths > limit).mean()) for limit in limits},
        lost={limit: float(np.maximum(lengths - limit, 0).sum() / max(lengths.sum(), 1)) for limit in limits},
    )
