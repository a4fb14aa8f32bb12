"""Which head follows which syntactic relation, as Clark et al. 2019 measure it (section 4).

Attention between tokens becomes attention between words: the sum over the tokens that are attended to, and the mean
over those that attend. A head then predicts, for each word, the word that it depends on: the other word to which it
attends most, or the one that attends to it most. Special tokens are no candidates.

The best of many heads looks good by chance alone. So heads, and the fixed offsets that they are compared with, are
chosen on one half of the rows, and scored on the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bertkit.insight.attention.rows import HeadRow
from bertkit.metrics import Numbers
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.tokens.features import Tensor

ALL = "all"
"""Stands for all relations but punctuation."""
DIRECTIONS = ("dependent to head", "head to dependent")
_PUNCTUATION = "punct"
_LEAST = 30  # words with a relation, in each half
_OFFSETS = tuple(offset for distance in range(1, 11) for offset in (-distance, distance))


@dataclass(frozen=True)
class RelationScore:
    """The best head for a relation, beside the best fixed offset."""

    relation: str
    words: int
    """With this relation, in the half of the rows that is scored."""
    layer: int
    head: int
    direction: str
    """Who attends: one of `DIRECTIONS`."""
    accuracy: float
    """Share of words whose syntactic head is found."""
    interval: Interval
    """Over resampled rows, as the others."""
    offset: int
    """The best fixed offset: -1 for the word before."""
    offset_accuracy: float
    offset_interval: Interval
    difference: float
    """Accuracy of the head less that of the offset."""
    difference_interval: Interval


class RelationCounter:
    """Keeps, for each word with a syntactic head, which attention heads find it."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.relations: list[str] = []
        self.distances: list[int] = []  # from a word to its syntactic head, in words
        self.hits: list[np.ndarray] = []  # per row (words, layers, heads, directions)

    def add(self, numbers: Sequence[int], rows: Sequence[HeadRow], weights: Sequence[Tensor]) -> None:
        """Add the rows of a batch.

        Args:
            numbers: those of the rows in the file.
            rows: those of the batch; without relations they are passed over.
            weights: of each layer, (rows, heads, tokens, tokens), padded on the right.
        """
        for position, (number, row) in enumerate(zip(numbers, rows, strict=True)):
            # of the words, those that have tokens, and depend on one that has
            has_tokens = [start < end for start, end in row.spans]
            words = [word for word, head in enumerate(row.heads) if head and has_tokens[word] and has_tokens[head - 1]]
            if not words:
                continue
            heads = [row.heads[word] - 1 for word in words]
            attention = words_attention(torch.stack([layer[position] for layer in weights]), row.spans)
            self.hits.append(find_hits(attention, words, heads))
            self.rows += [number] * len(words)
            self.relations += [row.relations[word] for word in words]
            self.distances += [head - word for word, head in zip(words, heads, strict=True)]

    def scores(self, seed: int = 0) -> list[RelationScore]:
        """Return the best head per relation, the most frequent relation first, after that of all relations."""
        if not self.hits:
            return []
        rows, distances, hits = np.array(self.rows), np.array(self.distances), np.concatenate(self.hits)
        # Tell for each word whether its row is of the half that heads are chosen on.
        numbers = np.unique(rows)
        half = np.random.default_rng(seed).permutation(numbers)[: len(numbers) // 2]
        chosen_on = np.isin(rows, half)
        names, by_frequency = np.array(self.relations), dict(Counter(sorted(self.relations)).most_common())
        masks = {ALL: names != _PUNCTUATION, **{name: names == name for name in by_frequency}}
        scored = []
        for name, mask in masks.items():
            first, second = mask & chosen_on, mask & ~chosen_on
            if min(first.sum(), second.sum()) < _LEAST:
                continue
            layer, head, direction = np.unravel_index(hits[first].sum(axis=0).argmax(), hits.shape[1:])
            offset = max(_OFFSETS, key=lambda one: int((distances[first] == one).sum()))
            by_head = hits[second, layer, head, direction]
            place = (int(layer), int(head), DIRECTIONS[direction])
            scored.append(_score_relation(name, place, offset, by_head, distances[second] == offset, rows[second]))
        return scored


def words_attention(weights: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Turn attention between tokens (..., tokens, tokens) into attention between words (..., words, words).

    A word that attends is the mean of its tokens, and one that is attended to is their sum (Clark et al. 2019, section
    4.1).
    """
    # (words, tokens)
    members = torch.zeros(len(spans), weights.shape[-1], device=weights.device)
    for word, (start, end) in enumerate(spans):
        members[word, start:end] = 1
    means = members / members.sum(1, keepdim=True).clamp_min(1)
    return means @ weights.float() @ members.T


def find_hits(attention: Tensor, words: Sequence[int], heads: Sequence[int]) -> np.ndarray:
    """Tell which attention heads find the syntactic heads of words: bool, (words, layers, heads, directions).

    Args:
        attention: between words, (layers, heads, words, words).
        words: numbers of those that depend on another.
        heads: number of the word that each depends on.
    """
    others = attention.clone()
    others.diagonal(dim1=-2, dim2=-1).fill_(-1)
    # (layers, heads, words, 2)
    predicted = torch.stack([others.argmax(dim=-1), others.argmax(dim=-2)], dim=-1)
    hits = predicted[:, :, list(words)] == torch.tensor(heads, device=attention.device)[:, None]
    return np.asarray(hits.permute(2, 0, 1, 3).cpu().numpy())


def _score_relation(
    relation: str, place: tuple[int, int, str], offset: int, by_head: Numbers, by_offset: Numbers, rows: Numbers
) -> RelationScore:
    numbers, owner = np.unique(rows, return_inverse=True)
    # sums per row, so that a resample of rows is a sum of a few numbers
    totals, head_hits, offset_hits = (
        np.bincount(owner, values, len(numbers)) for values in (np.ones(len(rows)), by_head, by_offset)
    )

    def score(drawn: np.ndarray) -> dict[str, float]:
        total = totals[drawn].sum()
        head, fixed = head_hits[drawn].sum() / total, offset_hits[drawn].sum() / total
        return {"head": head, "offset": fixed, "difference": head - fixed}

    values, intervals = score(np.arange(len(numbers))), bootstrap_intervals(score, len(numbers))
    layer, head, direction = place
    return RelationScore(
        relation=relation,
        words=len(rows),
        layer=layer,
        head=head,
        direction=direction,
        accuracy=values["head"],
        interval=intervals["head"],
        offset=offset,
        offset_accuracy=values["offset"],
        offset_interval=intervals["offset"],
        difference=values["difference"],
        difference_interval=intervals["difference"],
    )
