"""Split documents into passages that a model reads in full, and measure how much of a text it reads."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from bertkit.errors import UsageError
from bertkit.tokens.sentences import split_sentences
from bertkit.vectors.embedder import Embedder

if TYPE_CHECKING:
    from transformers import BatchEncoding

DEFAULT_TOKENS = 256
"""Tokens of a passage, unless the model reads fewer."""

_MIN_TOKENS = 8  # per passage, without special tokens and prompt
# Sentences that are tokenized at a time, so that a document of any length takes little memory.
_BLOCK = 1000


@dataclass(frozen=True)
class Coverage:
    """How many characters of some texts a model reads."""

    texts: int = 0
    truncated: int = 0
    """Number of texts that the model truncates."""
    read: int = 0
    characters: int = 0

    def __add__(self, more: Coverage) -> Coverage:
        """Return the coverage of both."""
        return Coverage(*map(operator.add, astuple(self), astuple(more)))

    @property
    def share(self) -> float:
        """Fraction of the characters that the model reads."""
        return self.read / self.characters if self.characters else 1.0

    def __str__(self) -> str:
        """Return the fraction in percent, rounded down, so that 100% means all.

        >>> str(Coverage(1, 0, 1999, 2000)), str(Coverage(1, 0, 2, 2))
        ('99.9%', '100%')
        """
        return "100%" if self.read == self.characters else f"{int(1000 * self.share) / 10}%"


def find_truncated(texts: Sequence[str], embedder: Embedder) -> dict[int, int]:
    """Find the texts that are longer than an embedder reads: position -> characters that it reads.

    Only a text with more bytes than the model reads tokens is tokenized once more, because each token has at least one.
    """
    # The number of bytes, plus two special tokens, bounds the number of tokens from above.
    limit = int(embedder.tokenizer.model_max_length)
    prompt = embedder.prompt_text
    long = [position for position, text in enumerate(texts) if len(f"{prompt}{text}".encode()) + 2 > limit]
    if not long:
        return {}
    encoded = tokenize([f"{prompt}{texts[position]}" for position in long], embedder, return_offsets_mapping=True)
    room = limit - embedder.tokenizer.num_special_tokens_to_add()
    return {
        position: max(0, offsets[room - 1][1] - len(prompt))
        for position, offsets in zip(long, encoded["offset_mapping"], strict=True)
        if len(offsets) > room
    }


def measure_coverage(texts: Sequence[str], embedder: Embedder) -> Coverage:
    """Measure how much of texts an embedder reads."""
    truncated = find_truncated(texts, embedder)
    unread = sum(len(texts[position]) - read for position, read in truncated.items())
    characters = sum(map(len, texts))
    return Coverage(len(texts), len(truncated), characters - unread, characters)


def count_tokens(texts: Sequence[str], embedder: Embedder) -> list[int]:
    """Count the tokens that an embedder makes of texts before it truncates them, with special tokens and prompt."""
    prompted = [f"{embedder.prompt_text}{text}" for text in texts]
    return [len(ids) for ids in tokenize(prompted, embedder, add_special_tokens=True)["input_ids"]] if prompted else []


def tokenize(texts: Sequence[str], embedder: Embedder, **options: bool) -> BatchEncoding:
    """Tokenize texts without truncation, and without special tokens unless the options add them."""
    if embedder.modules.lowercase:
        texts = [text.lower() for text in texts]
    options = {"add_special_tokens": False, "return_attention_mask": False, "split_special_tokens": True} | options
    return embedder.tokenizer(list(texts), truncation=False, verbose=False, **options)


class Passage(NamedTuple):
    """A part of a document: ``text[start:end]``."""

    start: int
    end: int
    tokens: int
    """Number of tokens, with special tokens and prompt."""


@dataclass(frozen=True)
class PassageSplitter:
    """Splitter of documents into passages of complete sentences; only a sentence that does not fit is split.

    Args:
        embedder: Model with its prompt.
        tokens: Maximum tokens per passage, with special tokens and prompt; by default 256, or the model's limit.
        overlap: Maximum tokens to repeat from the previous passage, in complete sentences.

    Raises:
        UsageError: If `tokens` exceeds the model's limit or is too low, or `overlap` is more than half of it.
    """

    embedder: Embedder
    tokens: int | None = None
    overlap: int = 0

    @cached_property
    def size(self) -> int:
        """Maximum tokens per passage, with special tokens and prompt."""
        limit = int(self.embedder.tokenizer.model_max_length)
        size = self.tokens or min(DEFAULT_TOKENS, limit)
        if size > limit:
            raise UsageError(f"passages of {size} tokens", f"the model reads at most {limit}")
        if size < self._around + _MIN_TOKENS:
            raise UsageError(f"passages of {size} tokens", f"give at least {self._around + _MIN_TOKENS}")
        if not 0 <= self.overlap <= size // 2:
            raise UsageError(f"an overlap of {self.overlap} tokens", f"give at most half a passage, {size // 2}")
        return size

    def describe(self) -> dict[str, int]:
        """Return what the passages of an index have in common."""
        return {"tokens": self.size, "overlap": self.overlap}

    @cached_property
    def _around(self) -> int:
        """Special tokens and tokens of the prompt."""
        return count_tokens([""], self.embedder)[0]

    def split(self, text: str) -> tuple[list[Passage], Coverage]:
        """Split a document into passages; every character that has tokens is in one of them.

        A passage does not fit only if one of its characters has more tokens than a passage can have. The coverage shows
        it: it counts the characters of sentences, without the whitespace between them.

        Sentences are tokenized one by one, and can have different tokens in a passage. So each passage is tokenized as
        the model will read it, and if one does not fit, the document is split again with fewer tokens.
        """
        budget = self.size - self._around
        while True:
            units = self._find_units(text, budget)
            spans = [(units[first].start, units[end - 1].end) for first, end in self._pack_units(units, budget)]
            counts = count_tokens([text[start:end] for start, end in spans], self.embedder)
            passages = [Passage(*span, count) for span, count in zip(spans, counts, strict=True)]
            excess = max(counts, default=0) - self.size
            if excess <= 0 or budget == 1:
                break
            # The budget shrinks in each round, so the loop ends, at the latest with one token per passage.
            budget = max(1, budget - excess)
        read = _count_covered(units, [passage for passage in passages if passage.tokens <= self.size])
        characters = sum(unit.end - unit.start for unit in units)
        return passages, Coverage(1, int(read < characters), read, characters)

    def _pack_units(self, units: Sequence[Passage], budget: int) -> Iterator[tuple[int, int]]:
        """Yield the first unit and the last + 1 of each passage, which has as many units as fit.

        For units of 4, 3, 5 and 2 tokens and a budget of 8, these are (0, 2) and (2, 4). With an overlap of 3 tokens,
        they are (0, 2), (1, 3) and (3, 4): the unit of 3 tokens is repeated, and the unit of 5 exceeds the overlap.
        """
        first, tokens = 0, 0
        for index, unit in enumerate(units):
            if index > first and tokens + unit.tokens > budget:
                yield first, index
                first, tokens = index, 0
                # Go back over the units that fit into the overlap, but leave room for the new unit.
                room = min(self.overlap, budget - unit.tokens)
                while tokens + units[first - 1].tokens <= room:
                    first -= 1
                    tokens += units[first].tokens
            tokens += unit.tokens
        if units:
            yield first, len(units)

    def _find_units(self, text: str, budget: int) -> list[Passage]:
        units: list[Passage] = []
        spans = _sentence_spans(text)
        while block := list(itertools.islice(spans, _BLOCK)):
            encoded = tokenize([text[start:end] for start, end in block], self.embedder)["input_ids"]
            for (start, end), ids in zip(block, encoded, strict=True):
                if len(ids) > budget:
                    units.extend(self._split_sentence(text, start, end, budget))
                elif ids:
                    units.append(Passage(start, end, len(ids)))
        return units

    def _split_sentence(self, text: str, start: int, end: int, budget: int) -> Iterator[Passage]:
        """Yield the words of a sentence; a word with more tokens than the budget is split into its tokens."""
        encoded = tokenize([text[start:end]], self.embedder, return_offsets_mapping=True)
        tokens = zip(encoded.word_ids(0), encoded["offset_mapping"][0], strict=True)
        for _, word in itertools.groupby(tokens, key=operator.itemgetter(0)):
            spans = [span for _, span in word]
            # A character can have several tokens, which all have its offsets. They stay together.
            groups = [spans] if len(spans) <= budget else [list(same) for _, same in itertools.groupby(spans)]
            for group in groups:
                unit = text[start + group[0][0] : start + group[-1][1]]
                # The offsets of some tokenizers include the space before a word.
                first = start + group[0][0] + len(unit) - len(unit.lstrip())
                if unit := unit.strip():
                    yield Passage(first, first + len(unit), len(group))


def _count_covered(units: Sequence[Passage], passages: Sequence[Passage]) -> int:
    """Count the characters of the units that are in passages; both are in the order of the text."""
    covered, remaining = 0, iter(passages)
    passage = next(remaining, None)
    for unit in units:
        while passage is not None and passage.end < unit.end:
            passage = next(remaining, None)
        covered += unit.end - unit.start if passage is not None and passage.start <= unit.start else 0
    return covered


def _sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each sentence."""
    end = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, end)  # Only whitespace is between them.
        end = start + len(sentence)
        yield start, end
