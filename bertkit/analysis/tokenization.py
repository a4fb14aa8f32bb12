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
_BATCH = 256  # texts


@dataclass(frozen=True)
class TokenizerFacts:
    """Properties of a tokenizer."""

    model: str
    type: str
    """Algorithm, such as ``WordPiece``."""
    vocabulary: int
    """Number of tokens that it knows."""
    max_tokens: int | None
    """Maximum tokens that the model reads, or None if no file of the tokenizer states it."""


@dataclass(frozen=True)
class TextTokenizer:
    """The tokenizer of a model."""

    facts: TokenizerFacts
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
    """Its first character in its text."""
    end: int | None
    """Its last character + 1."""
    word: int | None
    """Index of its word, from 0 in each text, as the tokenizer splits words."""
    text: str
    """Its characters."""


@dataclass(frozen=True)
class TextTokens(TokenizerFacts):
    """The tokens of a text, or of a pair of texts, as a model reads them."""

    words: int
    unknown: int
    tokens: list[Token]


@dataclass(frozen=True)
class TextFigures(TokenizerFacts):
    """Measurements of the texts of a file. Lengths are in tokens, including special tokens."""

    texts: int
    words: int
    fertility: float
    """Tokens per word."""
    coverage: float
    """Fraction of words that are one token."""
    unknown_rate: float
    """Fraction of tokens that are the unknown token."""
    vocabulary_seen: float
    """Fraction of the vocabulary that occurs."""
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
    stated = settings.get("model_max_length")
    # transformers writes 10^30 for "no limit".
    bounds = [int(stated)] if isinstance(stated, (int, float)) and stated < 1e9 else []
    if isinstance(positions := config.get("max_position_embeddings"), int) and positions > 0:
        padding, architecture = config.get("pad_token_id"), find_architecture(str(config.get("model_type")))
        # RoBERTa counts positions from the position after its padding token.
        first = padding + 1 if isinstance(padding, int) and architecture.positions_follow_padding_id else 0
        bounds.append(positions - first)
    # A model with one segment, such as RoBERTa, has no embedding for a second one.
    has_segments = config.get("type_vocab_size", 2) != 1
    algorithm, vocabulary = type(tokenizer.model).__name__, int(tokenizer.get_vocab_size())
    facts = TokenizerFacts(name, algorithm, vocabulary, min(bounds, default=None))
    return TextTokenizer(facts, tokenizer, _find_unknown(tokenizer), has_segments)


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
    return TextTokens(**vars(tokenizer.facts), words=words, unknown=unknown, tokens=tokens)


def _list_tokens(encoding: Encoding, texts: tuple[str, str], has_segments: bool) -> list[Token]:
    columns = (encoding.tokens, encoding.ids, encoding.type_ids, encoding.sequence_ids, encoding.offsets)
    tokens = []
    for token, token_id, segment, side, (start, end), word in zip(*columns, encoding.word_ids, strict=True):
        place = (None, None, word, "") if side is None else (start, end, word, texts[side][start:end])
        tokens.append(Token(token, token_id, segment if has_segments else 0, side is None, *place))
    return tokens


def measure_texts(tokenizers: Sequence[TextTokenizer], texts: Iterable[str]) -> list[TextFigures]:
    """Measure how tokenizers split texts, which are read once."""
    counts = [(tokenizer, Splitting(), list[int]()) for tokenizer in tokenizers]
    remaining = iter(texts)
    while batch := list(islice(remaining, _BATCH)):
        for tokenizer, splitting, lengths in counts:
            special = tokenizer.tokenizer.num_special_tokens_to_add(is_pair=False)
            encodings = tokenizer.tokenizer.encode_batch(batch, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                splitting.add(text, encoding.ids, encoding.offsets, tokenizer.unknown_id)
                lengths.append(len(encoding.ids) + special)
    return [_sum_up(*count) for count in counts]


def _sum_up(tokenizer: TextTokenizer, splitting: Splitting, counted: Sequence[int]) -> TextFigures:
    import numpy as np

    lengths = np.array(counted or [0])
    limits = sorted({*_LIMITS, tokenizer.facts.max_tokens or _LIMITS[0]})
    return TextFigures(
        **vars(tokenizer.facts),
        texts=splitting.texts,
        **splitting.figures(),
        vocabulary_seen=len(splitting.seen) / max(tokenizer.facts.vocabulary, 1),
        tokens=splitting.tokens,
        mean_length=float(lengths.mean()),
        median_length=int(np.quantile(lengths, 0.5, method="higher")),
        length_99=int(np.quantile(lengths, 0.99, method="higher")),
        longest=int(lengths.max()),
        truncated={limit: float((lengths > limit).mean()) for limit in limits},
        lost={limit: float(np.maximum(lengths - limit, 0).sum() / max(lengths.sum(), 1)) for limit in limits},
    )
