"""How far heads are from one another: the Jensen-Shannon divergence of what they attend to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertkit.insight.attention.rows import HeadRow

if TYPE_CHECKING:
    import torch


class DistanceCounter:
    """Adds up the divergence of each pair of heads (Clark et al. 2019, section 6), as a mean over tokens of texts."""

    def __init__(self) -> None:
        self.tokens = 0
        self.sums: np.ndarray | None = None  # (heads of all layers, heads of all layers)

    def add(self, rows: Sequence[HeadRow], weights: Sequence[torch.Tensor]) -> None:
        """Add the rows of a batch; `weights` of each layer, (rows, heads, tokens, tokens), padded on the right."""
        for number, row in enumerate(rows):
            own = len(row.is_special)
            attends = [position for position, special in enumerate(row.is_special) if not special]
            self._add_row([layer[number, :, :own, :own] for layer in weights], attends)

    def _add_row(self, weights: Sequence[torch.Tensor], attends: Sequence[int]) -> None:
        import torch

        heads = torch.cat(list(weights)).float()[:, attends]  # (heads, tokens that attend, tokens)
        entropy = _entropies(heads)
        sums = torch.zeros(len(heads), len(heads), device=heads.device)
        # Of two heads it is the entropy of their mean less the mean of their entropies. One head at a time beside all
        # others: a tensor of all pairs would be a thousand times as large as the attention.
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


def _entropies(weights: torch.Tensor) -> torch.Tensor:
    import torch

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
