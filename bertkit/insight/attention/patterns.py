"""What each head attends to on average: shares of attention to tokens by position, identity and type, and entropy.

The patterns are those of Clark et al. 2019 (section 3), and rare tokens those of Voita et al. 2019 (section 5.2). They
overlap: the next token may be punctuation. All are means over the tokens of texts that attend; special tokens are
attended to, but their own attention is not counted.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bertkit.insight.attention.rows import HeadRow
from bertkit.tokens.features import Tensor, Tokenizer

PATTERNS = {
    "itself": "the token itself",
    "previous": "the token before it",
    "next": "the token after it",
    "same": "the same token elsewhere in the text",
    "first": "the special token at the beginning, such as [CLS]",
    "separator": "the other special tokens, such as [SEP]",
    "punctuation": "punctuation marks",
    "rare": "the tokens of the text that are rarest in the file",
}
"""Name -> what is attended to."""

BROAD, MIXED = "broad", "mixed"
_HALF = 0.5  # of the attention, that a pattern must get to describe a head
_BROAD = 0.9  # least entropy of a broad head, relative to that of uniform attention
_BEGINNINGS = ("##", "Ġ", "▁")


@dataclass(frozen=True)
class PatternTable:
    """The patterns of all heads, as means over the tokens that attend."""

    tokens: int
    """Those that attend: all but special ones."""
    shares: np.ndarray
    """(layers, heads, patterns), in the order of `PATTERNS`."""
    uniform: np.ndarray
    """(patterns,): the shares of a head that attends to all tokens alike."""
    entropy: np.ndarray
    """(layers, heads), in nats."""
    normalized_entropy: np.ndarray
    """(layers, heads): the entropy of each token by that of uniform attention, in [0, 1]."""

    def describe(self, layer: int, head: int) -> str:
        """Return the largest pattern that gets at least half of a head's attention, else ``broad`` or ``mixed``."""
        shares = self.shares[layer, head]
        best = int(shares.argmax())
        if shares[best] >= _HALF:
            return list(PATTERNS)[best]
        return BROAD if self.normalized_entropy[layer, head] >= _BROAD else MIXED


class PatternCounter:
    """Adds up the patterns of batches, so that no attention is kept."""

    def __init__(self, rows: Sequence[HeadRow], tokenizer: Tokenizer) -> None:
        self.counts = Counter(token for row in rows for token in _text_ids(row))
        self.marks = {token for token in self.counts if is_punctuation(tokenizer.convert_ids_to_tokens(token))}
        self.tokens = 0
        self.uniform = np.zeros(len(PATTERNS))
        # per layer (heads, patterns + 2): the last two are entropies
        self.sums: list[np.ndarray] = []

    def add(self, rows: Sequence[HeadRow], weights: Sequence[Tensor]) -> None:
        """Add a batch.

        Args:
            rows: those of the batch.
            weights: of each layer, (rows, heads, tokens, tokens), padded on the right.
        """
        device, width = weights[0].device, weights[0].shape[-1]
        # masks (patterns, rows, tokens, tokens): what belongs to each pattern, for the tokens that attend
        masks, attends, lengths = self._masks(rows, width)
        self.tokens += int(attends.sum())
        self.uniform += (masks.sum(-1) / lengths[:, None]).sum((1, 2))
        of_patterns = torch.from_numpy(masks).to(device, torch.float32)
        from_tokens = torch.from_numpy(attends).to(device, torch.float32)
        relative = from_tokens / torch.from_numpy(np.log(lengths)).float().to(device)[:, None]
        sums = []
        for layer in weights:
            shares = torch.einsum("rhij,prij->hp", layer.float(), of_patterns)
            entropy = -torch.xlogy(layer, layer).float().sum(-1)
            means = [torch.einsum("rhi,ri->h", entropy, one) for one in (from_tokens, relative)]
            sums.append(torch.cat([shares, torch.stack(means, dim=1)], dim=1).cpu().double().numpy())
        self.sums = [old + new for old, new in zip(self.sums, sums, strict=True)] if self.sums else sums

    def table(self) -> PatternTable:
        """Return the means over all tokens that were added."""
        means = np.stack(self.sums) / self.tokens
        count = len(PATTERNS)
        return PatternTable(
            tokens=self.tokens,
            shares=means[..., :count],
            uniform=self.uniform / self.tokens,
            entropy=means[..., count],
            normalized_entropy=means[..., count + 1],
        )

    def _masks(self, rows: Sequence[HeadRow], width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Build the masks of a batch, the tokens that attend (rows, tokens), and the lengths of the rows."""
        lengths = np.array([len(row.is_special) for row in rows])
        is_text, separators, ids = (np.zeros((len(rows), width), dtype) for dtype in (bool, bool, np.int64))
        marks, rare = np.zeros_like(is_text), np.zeros_like(is_text)
        for number, row in enumerate(rows):
            real = slice(lengths[number])
            ids[number, real] = row.feature["input_ids"]
            is_text[number, real] = ~np.array(row.is_special)
            separators[number, real] = row.separators
            counts = np.array([self.counts[token] for token in row.feature["input_ids"]])
            rare[number, real] = is_text[number, real] & (counts == counts[is_text[number, real]].min())
            marks[number, real] = is_text[number, real] & [token in self.marks for token in row.feature["input_ids"]]
        first = (np.arange(width) < lengths[:, None]) & ~is_text & ~separators
        # distance from the token that attends to the token attended to
        offsets = np.arange(width) - np.arange(width)[:, None]
        to_text = is_text[:, None, :]
        by_name = {
            "itself": to_text & (offsets == 0),
            "previous": to_text & (offsets == -1),
            "next": to_text & (offsets == 1),
            "same": to_text & (offsets != 0) & (ids[:, None, :] == ids[:, :, None]),
            "first": first[:, None, :],
            "separator": separators[:, None, :],
            "punctuation": marks[:, None, :],
            "rare": rare[:, None, :],
        }
        masks = np.stack([np.broadcast_to(by_name[name], (len(rows), width, width)) for name in PATTERNS])
        return masks & is_text[:, :, None], is_text, lengths


def is_punctuation(token: str) -> bool:
    """Tell whether a token of a vocabulary is punctuation or a symbol.

    >>> [is_punctuation(token) for token in (".", "##!", "Ġ--", "$", "a.", "▁")]
    [True, True, True, True, False, False]
    """
    for beginning in _BEGINNINGS:
        token = token.removeprefix(beginning)
    return bool(token) and all(unicodedata.category(char)[0] in "PS" for char in token)


def _text_ids(row: HeadRow) -> Iterable[int]:
    return (token for token, special in zip(row.feature["input_ids"], row.is_special, strict=True) if not special)
