"""What tokenizers make of a text, token by token, and of a file of texts, in figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.modeling.architectures import find_architecture
from bertkit.modeling.tokenizer import read_tokenizer
from bertkit.tokens.light import plain, read_json, read_light_tokenizer
from bertkit.tokens.splitting import Splitting, find_words

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

LIMITS = (128, 256, 512)
_BATCH = 256  # texts


@dataclass(frozen=True)
class TextTokenizer:
    """The tokenizer of a model."""

    name: str
    tokenizer: Tokenizer
    unknown_id: int | None
    max_tokens: int | None
    """The most that the model reads; None where nothing beside the tokenizer says."""
    has_segments: bool

    @property
    def type(self) -> str:
        """The name of its algorithm, such as ``WordPiece``."""
        return type(self.tokenizer.model).__name__

    @property
    def vocabulary(self) -> int:
        """How many tokens it knows."""
        return int(self.tokenizer.get_vocab_size())

    def facts(self) -> dict[str, Any]:
        """Return what `TextTokens` and `TextFigures` say of it."""
        sizes = {"vocabulary": self.vocabulary, "max_tokens": self.max_tokens}
        return {"model": self.name, "type": self.type, **sizes}


@dataclass(frozen=True)
class Token:
    """A token of a text; a special one has no word and no characters."""

    token: str
    id: int
    segment: int
    is_special: bool
    start: int | None
    """Its first character in its text."""
    end: int | None
    """Its last character + 1."""
    word: int | None
    """Number of its word, from 0 in each text, as the tokenizer splits words."""
    text: str
    """The characters that it stands for."""


@dataclass(frozen=True)
class TextTokens:
    """The tokens of a text, or of a pair of texts, as a model reads them."""

    model: str
    type: str
    vocabulary: int
    max_tokens: int | None
    words: int
    unknown: int
    tokens: list[Token] = field(default_factory=list)


@dataclass(frozen=True)
class TextFigures:
    """How a tokenizer splits the texts of a file. Lengths are in tokens, with special ones."""

    model: str
    type: str
    vocabulary: int
    max_tokens: int | None
    texts: int
    words: int
    fertility: float
    """Tokens per word."""
    coverage: float
    """Share of words that are one token."""
    unknown_rate: float
    """Share of tokens that are the unknown token."""
    vocabulary_seen: float
    """Share of the vocabulary that occurs."""
    tokens: int
    """All of them, without special ones."""
    mean_length: float
    median_length: int
    length_99: int
    """The length that 99% of the texts do not exceed."""
    longest: int
    truncated: dict[int, float]
    """Maximal length -> share of texts that are longer."""
    lost: dict[int, float]
    """Maximal length -> share of tokens that are truncated."""


def load_text_tokenizer(folder: Path, name: str) -> TextTokenizer:
    """Load the tokenizer of a model's folder, without torch where it has a ``tokenizer.json``.

    Raises:
        ModelError: there is none, or it is damaged.
        UnavailableError: it needs a package that is not installed.
    """
    tokenizer = read_light_tokenizer(folder)
    if tokenizer is None:
        tokenizer = plain(read_tokenizer(folder).backend_tokenizer)
    config, settings = read_json(folder / "config.json"), read_json(folder / "tokenizer_config.json")
    own = settings.get("model_max_length")
    bounds = [int(own)] if isinstance(own, (int, float)) and own < 1e9 else []
    if isinstance(positions := config.get("max_position_embeddings"), int) and positions > 0:
        padding, architecture = config.get("pad_token_id"), find_architecture(str(config.get("model_type")))
        # RoBERTa counts positions from the one after its padding token's
        first = padding + 1 if isinstance(padding, int) and architecture.counts_from_padding else 0
        bounds.append(positions - first)
    return TextTokenizer(
        name=name,
        tokenizer=tokenizer,
        unknown_id=_find_unknown(tokenizer),
        max_tokens=min(bounds, default=None),
        has_segments=config.get("type_vocab_size", 2) != 1,
    )


def tokenize_text(tokenizer: TextTokenizer, text: str, pair: str | None = None) -> TextTokens:
    """Tokenize a text, or a pair of texts, with the special tokens that a model reads."""
    encoding = tokenizer.tokenizer.encode(text, pair)
    tokens = list(_list_tokens(encoding, (text, pair or ""), tokenizer.has_segments))
    return TextTokens(
        **tokenizer.facts(),
        words=sum(len(find_words(own)) for own in (text, pair) if own),
        unknown=sum(token.id == tokenizer.unknown_id for token in tokens),
        tokens=tokens,
    )


def measure_texts(tokenizers: Sequence[TextTokenizer], texts: Iterable[str]) -> list[TextFigures]:
    """Measure how tokenizers split texts, which are read once."""
    gathered = [_Gathered(tokenizer) for tokenizer in tokenizers]
    remaining = iter(texts)
    while batch := list(islice(remaining, _BATCH)):
        for one in gathered:
            one.add(batch)
    return [one.figures() for one in gathered]


class _Gathered:
    """What is counted of the texts for one tokenizer."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.splitting = Splitting()
        self.lengths: list[int] = []
        self.special = tokenizer.tokenizer.num_special_tokens_to_add(is_pair=False)

    def add(self, texts: Sequence[str]) -> None:
        encodings = self.tokenizer.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            self.splitting.add(text, encoding.ids, encoding.offsets, self.tokenizer.unknown_id)
            self.lengths.append(len(encoding.ids) + self.special)

    def figures(self) -> TextFigures:
        """Sum up."""
        import numpy as np

        tokenizer, splitting = self.tokenizer, self.splitting
        lengths = np.array(self.lengths or [0])
        limits = sorted({*LIMITS, *([tokenizer.max_tokens] if tokenizer.max_tokens else [])})
        return TextFigures(
            **tokenizer.facts(),
            texts=splitting.texts,
            **splitting.figures(),
            vocabulary_seen=len(splitting.seen) / max(tokenizer.vocabulary, 1),
            tokens=splitting.tokens,
            mean_length=float(lengths.mean()),
            median_length=int(np.quantile(lengths, 0.5, method="higher")),
            length_99=int(np.quantile(lengths, 0.99, method="higher")),
            longest=int(lengths.max()),
            truncated={limit: float((lengths > limit).mean()) for limit in limits},
            lost={limit: float(np.maximum(lengths - limit, 0).sum() / max(lengths.sum(), 1)) for limit in limits},
        )


def _list_tokens(encoding: Encoding, texts: tuple[str, str], has_segments: bool) -> Iterator[Token]:
    columns = (encoding.tokens, encoding.ids, encoding.type_ids, encoding.offsets, encoding.word_ids)
    for token, number, segment, (start, end), word, side in zip(*columns, encoding.sequence_ids, strict=True):
        is_special = side is None
        yield Token(
            token=token,
            id=number,
            segment=segment if has_segments else 0,
            is_special=is_special,
            start=None if is_special else start,
            end=None if is_special else end,
            word=word,
            text="" if is_special else texts[side][start:end],
        )


def _find_unknown(tokenizer: Tokenizer) -> int | None:
    """Return the id of the unknown token; None where the tokenizer has none."""
    model = tokenizer.model
    token = getattr(model, "unk_token", None)
    if token is not None:
        return tokenizer.token_to_id(token)
    number = getattr(model, "unk_id", None)  # of a unigram model
    return None if number is None else int(number)
