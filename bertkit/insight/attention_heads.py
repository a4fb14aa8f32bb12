"""Every head of an encoder measured over the rows of a file: the patterns and the syntactic relations that it follows.

The patterns follow Clark et al. 2019 (section 3), and rare tokens Voita et al. 2019 (section 5.2). They
overlap: the next token may be punctuation. All are means over the tokens of texts that attend; special tokens are
attended to, but their own attention is not counted.

Relations are measured as by Clark et al. 2019 (section 4). Attention between tokens becomes attention between words:
the sum over the tokens that are attended to, and the mean over those that attend. A head then predicts, for each word,
the word that it depends on: the other word that gets most of its attention, or the word that attends to it most.
Special tokens are not candidates. The best of many heads looks good by chance alone. So heads, and the fixed offsets
that they are compared with, are chosen on one half of the rows, and scored on the other.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from bertkit.errors import DataError
from bertkit.evaluation.forward import sorted_batches
from bertkit.insight.attention import AttentionModel
from bertkit.insight.attention_rows import HeadRow, TextOrWords, encode_rows
from bertkit.metrics import Numbers
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.modeling.attention import attention_weights
from bertkit.progress import stage
from bertkit.tokens.features import Tensor, Tokenizer

# --- Patterns ---

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
_HALF = 0.5  # share of attention that a pattern must get to describe a head
_BROAD = 0.9  # minimum normalized entropy of a broad head
_BEGINNINGS = ("##", "Ġ", "▁")


@dataclass(frozen=True)
class PatternTable:
    """The patterns of all heads, as means over the tokens that attend."""

    tokens: int
    """Number of tokens that attend: all but special ones."""
    shares: np.ndarray
    """(layers, heads, patterns), in the order of `PATTERNS`."""
    uniform: np.ndarray
    """(patterns,): the shares of a head that attends to all tokens alike."""
    entropy: np.ndarray
    """(layers, heads), in nats."""
    normalized_entropy: np.ndarray
    """(layers, heads): the entropy of each token divided by the entropy of uniform attention, in [0, 1]."""

    def describe(self, layer: int, head: int) -> str:
        """Return the largest pattern that gets at least half of a head's attention, else ``broad`` or ``mixed``."""
        shares = self.shares[layer, head]
        best = int(shares.argmax())
        if shares[best] >= _HALF:
            return list(PATTERNS)[best]
        return BROAD if self.normalized_entropy[layer, head] >= _BROAD else MIXED


class PatternCounter:
    """Sums of patterns over batches, so that no attention is kept."""

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
            rows: Rows of the batch.
            weights: Weights of each layer, (rows, heads, tokens, tokens), padded on the right.
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
    """Return whether a token of a vocabulary is punctuation or a symbol.

    >>> [is_punctuation(token) for token in (".", "##!", "Ġ--", "$", "a.", "▁")]
    [True, True, True, True, False, False]
    """
    for beginning in _BEGINNINGS:
        token = token.removeprefix(beginning)
    return bool(token) and all(unicodedata.category(char)[0] in "PS" for char in token)


def _text_ids(row: HeadRow) -> Iterable[int]:
    return (token for token, special in zip(row.feature["input_ids"], row.is_special, strict=True) if not special)


# --- Relations ---

ALL = "all"
"""Stands for all relations but punctuation."""
DIRECTIONS = ("dependent to head", "head to dependent")
_PUNCTUATION = "punct"
_LEAST = 30  # words with a relation, in each half
_OFFSETS = tuple(offset for distance in range(1, 11) for offset in (-distance, distance))


@dataclass(frozen=True)
class RelationScore:
    """The best head for a relation, compared with the best fixed offset."""

    relation: str
    words: int
    """Number of words with this relation in the scored half of the rows."""
    layer: int
    head: int
    direction: str
    """Direction of attention, one of `DIRECTIONS`."""
    accuracy: float
    """Share of words whose syntactic head is found."""
    interval: Interval
    """Interval over resampled rows, like the others."""
    offset: int
    """The best fixed offset: -1 for the word before."""
    offset_accuracy: float
    offset_interval: Interval
    difference: float
    """Accuracy of the head minus the accuracy of the offset."""
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
            numbers: Numbers of the rows in the file.
            rows: Rows of the batch; rows without relations are skipped.
            weights: Weights of each layer, (rows, heads, tokens, tokens), padded on the right.
        """
        for position, (number, row) in enumerate(zip(numbers, rows, strict=True)):
            # Only words that have tokens, and whose heads have tokens, can be scored.
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
        """Return the best head per relation, after the head for all relations."""
        if not self.hits:
            return []
        rows, distances, hits = np.array(self.rows), np.array(self.distances), np.concatenate(self.hits)
        # Heads are chosen on one half of the rows.
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
    """Return which attention heads find the syntactic heads of words: bool, (words, layers, heads, directions).

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


# --- All heads ---

_SEED = 0
_TOKENS = 1024  # padded, per batch; all of its attention is in memory at once


@dataclass(frozen=True)
class MeasuredHead:
    """Average attention of one head; layers and heads count from 0."""

    layer: int
    head: int
    described_as: str
    """A name of `PATTERNS`, ``broad`` or ``mixed``."""
    shares: dict[str, float]
    """Pattern -> share of attention, from 0 to 1."""
    entropy: float
    """Entropy in nats."""
    normalized_entropy: float
    """Normalized entropy, from 0 (all attention to one token) to 1 (the same to all)."""


@dataclass(frozen=True)
class MeasuredHeads:
    """All heads of an encoder, measured over the rows of a file."""

    model: str
    file: str
    layers: int
    heads: int
    """Per layer."""
    rows: int
    left_out: int
    """Rows without tokens, or with more tokens than the limit."""
    max_tokens: int
    tokens: int
    """Number of tokens that attend: all but special ones."""
    uniform: dict[str, float]
    """Pattern -> share that a head gives it which attends to all tokens alike."""
    measured: list[MeasuredHead]
    relations: list[RelationScore] = field(default_factory=list)
    """Scores of relations, if rows have syntactic heads."""


def measure_heads(model: AttentionModel, rows: Sequence[TextOrWords], file: str, *, max_tokens: int) -> MeasuredHeads:
    """Measure what every head of an encoder attends to, batch by batch.

    Args:
        model: Encoder whose heads are measured.
        rows: Texts, or words with or without their syntactic heads.
        file: Name of their file.
        max_tokens: Maximum tokens of a row; longer rows are left out.

    Raises:
        DataError: If no row is left.
        ModelError: If the model has no weights to measure.
    """
    limit = min(max_tokens, model.max_tokens)
    encoded = encode_rows(rows, model.tokenizer, limit)
    if not encoded:
        what = f"no row has text of up to {limit:,} tokens"
        raise DataError(what, "name another --column or --max-length", file=file)
    # No more than the attention of one batch is in memory.
    patterns, relations = PatternCounter(encoded, model.tokenizer), RelationCounter()
    with stage("measuring heads", len(encoded)) as tick:
        for numbers in sorted_batches([len(row.is_special) for row in encoded], _TOKENS):
            batch = [encoded[number] for number in numbers]
            weights = attention_weights(model.model, model.collate([row.feature for row in batch]))
            patterns.add(batch, weights)
            relations.add(numbers, batch, weights)
            tick(len(numbers))
    with stage("choosing the heads of relations", total=1):
        table, scores = patterns.table(), relations.scores(_SEED)
    layers, heads, _ = table.shares.shape
    return MeasuredHeads(
        model=model.name,
        file=file,
        layers=layers,
        heads=heads,
        rows=len(encoded),
        left_out=len(rows) - len(encoded),
        max_tokens=limit,
        tokens=table.tokens,
        uniform=dict(zip(PATTERNS, table.uniform.tolist(), strict=True)),
        measured=[_measure_head(table, layer, head) for layer in range(layers) for head in range(heads)],
        relations=scores,
    )


def _measure_head(table: PatternTable, layer: int, head: int) -> MeasuredHead:
    return MeasuredHead(
        layer=layer,
        head=head,
        described_as=table.describe(layer, head),
        shares=dict(zip(PATTERNS, table.shares[layer, head].tolist(), strict=True)),
        entropy=float(table.entropy[layer, head]),
        normalized_entropy=float(table.normalized_entropy[layer, head]),
    )
