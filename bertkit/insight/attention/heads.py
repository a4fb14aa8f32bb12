"""Every head of an encoder measured over rows: what it attends to, its kin, and the relations that it follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from bertkit.errors import DataError
from bertkit.evaluation.forward import sorted_batches
from bertkit.insight.attention.patterns import PATTERNS, PatternCounter, PatternTable
from bertkit.insight.attention.relations import RelationCounter, RelationScore
from bertkit.insight.attention.rows import HeadRow, TextOrWords, encode_rows
from bertkit.insight.attention.weights import AttentionModel
from bertkit.modeling.attention import attention_weights
from bertkit.progress import stage
from bertkit.tokens.features import Tensor


class DistanceCounter:
    """Adds up the divergence of each pair of heads (Clark et al. 2019, section 6), as a mean over tokens of texts."""

    def __init__(self) -> None:
        self.tokens = 0
        self.sums: np.ndarray | None = None  # (heads of all layers, heads of all layers)

    def add(self, rows: Sequence[HeadRow], weights: Sequence[Tensor]) -> None:
        """Add the rows of a batch; `weights` of each layer, (rows, heads, tokens, tokens), padded on the right."""
        for number, row in enumerate(rows):
            own = len(row.is_special)
            attends = [position for position, special in enumerate(row.is_special) if not special]
            # (heads, tokens that attend, tokens)
            heads = torch.cat([layer[number, :, :own, :own] for layer in weights]).float()[:, attends]
            entropy = _entropies(heads)
            sums = torch.zeros(len(heads), len(heads), device=heads.device)
            # Of two heads it is the entropy of their mean less the mean of their entropies. One head at a time beside
            # all others: a tensor of all pairs would be a thousand times as large as the attention.
            for head in range(len(heads) - 1):
                middle = _entropies((heads[head] + heads[head + 1 :]) / 2)
                divergence = middle - (entropy[head] + entropy[head + 1 :]) / 2
                sums[head, head + 1 :] = divergence.sum(-1)
            total = (sums + sums.T).clamp_min(0).cpu().double().numpy() / math.log(2)
            self.sums = total if self.sums is None else self.sums + total
            self.tokens += len(attends)

    def distances(self) -> np.ndarray:
        """Return the mean divergences in bits, from 0 to 1: (heads of all layers, heads of all layers)."""
        if self.sums is None:
            raise ValueError("nothing was added")
        return np.asarray(self.sums / self.tokens)


def _entropies(weights: Tensor) -> Tensor:
    return -torch.xlogy(weights, weights).sum(-1)


def choose_rows(rows: Sequence[HeadRow], tokens: int, seed: int) -> set[int]:
    """Draw the numbers of rows that together have about `tokens` tokens of text; all where there are no more."""
    chosen, total = set[int](), 0
    for number in np.random.default_rng(seed).permutation(len(rows)).tolist():
        if total >= tokens:
            break
        chosen.add(number)
        total += len(rows[number].is_special) - sum(rows[number].is_special)
    return chosen


# over which the distances of heads are measured, since they cost much more than the rest
_DISTANCE_TOKENS = 2000
_SEED = 0
_TOKENS = 1024  # padded, per batch; all of its attention is in memory at once


@dataclass(frozen=True)
class MeasuredHead:
    """What one head does on average; layers and heads count from 0."""

    layer: int
    head: int
    described_as: str
    """A name of `PATTERNS`, ``broad`` or ``mixed``."""
    shares: dict[str, float]
    """Pattern -> share of attention, from 0 to 1."""
    entropy: float
    """In nats."""
    normalized_entropy: float
    """From 0, all attention to one token, to 1, the same to all."""
    nearest: tuple[int, int]
    """Layer and head of the most similar head."""
    nearest_distance: float
    """Jensen-Shannon divergence from it in bits, from 0 to 1."""


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
    """Rows without tokens, or longer than what was read."""
    max_tokens: int
    tokens: int
    """Those that attend: all but special ones."""
    uniform: dict[str, float]
    """Pattern -> share that a head gives it which attends to all tokens alike."""
    measured: list[MeasuredHead]
    distances: list[list[float]]
    """Between heads, in the order of `measured`."""
    distance_tokens: int
    """Over which distances are means."""
    relations: list[RelationScore] = field(default_factory=list)
    """Scores of relations, where rows have syntactic heads."""


def measure_heads(model: AttentionModel, rows: Sequence[TextOrWords], file: str, *, max_tokens: int) -> MeasuredHeads:
    """Measure what every head of an encoder attends to, batch by batch.

    Args:
        model: whose heads.
        rows: texts, or words with or without their syntactic heads.
        file: what they are from.
        max_tokens: longer rows are left out.

    Raises:
        DataError: no row is left.
        ModelError: the model has no weights to measure.
    """
    limit = min(max_tokens, model.max_tokens)
    encoded = encode_rows(rows, model.tokenizer, limit)
    if not encoded:
        what = f"no row has text of up to {limit:,} tokens"
        raise DataError(what, "name another --column or --max-length", file=file)
    # No more than the attention of one batch is in memory.
    patterns, distances, relations = PatternCounter(encoded, model.tokenizer), DistanceCounter(), RelationCounter()
    chosen = choose_rows(encoded, _DISTANCE_TOKENS, _SEED)
    with stage("measuring heads", len(encoded)) as tick:
        for numbers in sorted_batches([len(row.is_special) for row in encoded], _TOKENS):
            batch = [encoded[number] for number in numbers]
            weights = attention_weights(model.model, model.collate([row.feature for row in batch]))
            patterns.add(batch, weights)
            relations.add(numbers, batch, weights)
            inside = [position for position, number in enumerate(numbers) if number in chosen]
            distances.add([batch[position] for position in inside], [layer[inside] for layer in weights])
            tick(len(numbers))
    with stage("choosing the heads of relations", total=1):
        table, scores = patterns.table(), relations.scores(_SEED)
    layers, heads, _ = table.shares.shape
    matrix = distances.distances()
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
        measured=[_measure_head(table, matrix, layer, head) for layer in range(layers) for head in range(heads)],
        distances=matrix.round(4).tolist(),
        distance_tokens=distances.tokens,
        relations=scores,
    )


def _measure_head(table: PatternTable, matrix: np.ndarray, layer: int, head: int) -> MeasuredHead:
    heads = table.shares.shape[1]
    row = matrix[layer * heads + head].copy()
    row[layer * heads + head] = math.inf
    nearest = int(row.argmin())
    return MeasuredHead(
        layer=layer,
        head=head,
        described_as=table.describe(layer, head),
        shares=dict(zip(PATTERNS, table.shares[layer, head].tolist(), strict=True)),
        entropy=float(table.entropy[layer, head]),
        normalized_entropy=float(table.normalized_entropy[layer, head]),
        nearest=(nearest // heads, nearest % heads),
        nearest_distance=float(matrix[layer * heads + head, nearest]),
    )
