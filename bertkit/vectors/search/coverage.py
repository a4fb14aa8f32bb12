"""How much of some texts a model reads, since it truncates those that are too long for it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from bertkit.vectors.embedder import Embedder

if TYPE_CHECKING:
    from transformers import BatchEncoding


@dataclass(frozen=True)
class Coverage:
    """How many characters of some texts a model reads."""

    texts: int = 0
    truncated: int = 0
    """Texts of which the model reads only a part."""
    read: int = 0
    characters: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        """Return the coverage of both."""
        return Coverage(*map(operator.add, astuple(self), astuple(other)))

    @property
    def share(self) -> float:
        """The share of the characters that the model reads."""
        return self.read / self.characters if self.characters else 1.0

    def __str__(self) -> str:
        """Return the share in percent, rounded down, so that 100% means all.

        >>> str(Coverage(1, 0, 1999, 2000)), str(Coverage(1, 0, 2, 2))
        ('99.9%', '100%')
        """
        return "100%" if self.read == self.characters else f"{int(1000 * self.share) / 10}%"


def find_truncated(texts: Sequence[str], embedder: Embedder) -> dict[int, int]:
    """Find the texts that are longer than an embedder reads: position -> characters that it reads.

    Only a text with more bytes than the model reads tokens is tokenized once more, since each token has at least one.
    """
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
    lost = sum(len(texts[position]) - read for position, read in truncated.items())
    characters = sum(map(len, texts))
    return Coverage(len(texts), len(truncated), characters - lost, characters)


def count_tokens(texts: Sequence[str], embedder: Embedder) -> list[int]:
    """Count the tokens that an embedder makes of texts before it truncates them, with special tokens and prompt."""
    begun = [f"{embedder.prompt_text}{text}" for text in texts]
    return [len(ids) for ids in tokenize(begun, embedder, add_special_tokens=True)["input_ids"]] if begun else []


def tokenize(texts: Sequence[str], embedder: Embedder, **options: bool) -> BatchEncoding:
    """Tokenize texts whole, and without special tokens unless the options say otherwise."""
    if embedder.modules.lowercase:
        texts = [text.lower() for text in texts]
    options = {"add_special_tokens": False, "return_attention_mask": False, "split_special_tokens": True} | options
    return embedder.tokenizer(list(texts), truncation=False, verbose=False, **options)
