"""Losses over the vectors of a batch's texts, and negatives that are mined for them.

Losses are functions of float32 vectors of shape (rows, texts, dimension). Each has the values and gradients of the
class of sentence-transformers that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from bertkit.hardware.tensors import derive, select, where
from bertkit.metrics import Numbers
from bertkit.progress import log
from bertkit.tokens.feature_cache import add_values
from bertkit.tokens.features import IGNORED, Features

LOSSES = ("cosent", "cosine", "mnrl", "margin_mse", "simcse", "class_cosent")
COMPARING = ("cosent", "mnrl", "simcse", "class_cosent")
"""Losses that compare the rows of a batch with one another, so that a batch cannot be split."""

Labels = torch.Tensor | None
_Loss = Callable[[torch.Tensor, Labels, torch.Tensor, float, bool], torch.Tensor]
_NEVER = -1e9  # its exponential is 0, and its gradient is one


@dataclass(frozen=True)
class VectorLoss:
    """The loss of a recipe."""

    name: str
    """One of `LOSSES`."""
    scale: float = 20.0
    """Multiplies cosines before a softmax; the inverse of a temperature."""
    dimensions: tuple[int, ...] = ()
    """The loss is the sum over these first components of the vectors (Kusupati et al. 2022); all alone without any."""
    texts: int | None = None
    """How many of a row's texts ``simcse`` learns from, the first of them; None for all."""

    def __call__(
        self, vectors: torch.Tensor, labels: Labels, missing: torch.Tensor, filled: bool = False
    ) -> torch.Tensor:
        """Compute the loss of a batch.

        Args:
            vectors: of the texts of each row, (rows, texts, dimension).
            labels: (rows,), or (rows, texts - 2) for ``margin_mse``; None for losses without.
            missing: which texts a row lacks, (rows, texts).
            filled: whether rows that lack their first text only fill the batch, and no shape may change.
        """
        compute = _FUNCTIONS[self.name]
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.float()
            if not self.dimensions:
                return compute(vectors, labels, missing, self.scale, filled)
            shorter = [functional.normalize(vectors[..., :count], dim=-1) for count in self.dimensions]
            return torch.stack([compute(each, labels, missing, self.scale, filled) for each in shorter]).sum()


def cosent(
    vectors: torch.Tensor, labels: Labels, missing: torch.Tensor, scale: float, filled: bool = False
) -> torch.Tensor:
    """Compute how far pairs with lower labels have higher cosines (Su 2022, `CoSENTLoss`).

    That is ln(1 + sum of exp(scale * (cosine of i - cosine of j)) over all pairs of rows where i has the lower label).
    """
    assert labels is not None
    scores = scale * functional.cosine_similarity(vectors[:, 0], vectors[:, 1])
    # (rows, rows): how much higher row i scores than row j, where it should be lower
    differences = scores[:, None] - scores[None, :]
    lower = derive(labels, lambda labels: labels[:, None] < labels[None, :])
    counted = _chosen(differences, lower, missing, filled)
    return torch.cat([scores.new_zeros(1), counted]).logsumexp(dim=0)


def _chosen(values: torch.Tensor, pairs: torch.Tensor, missing: torch.Tensor, filled: bool) -> torch.Tensor:
    """Return the values (rows, rows) of some pairs of rows, for a sum of their exponentials."""
    if not filled:
        return select(values, pairs)
    is_row = ~missing[:, 0]
    return values.where(pairs & is_row[:, None] & is_row[None, :], _NEVER).flatten()


def _mean(values: torch.Tensor, missing: torch.Tensor, filled: bool) -> torch.Tensor:
    """Return the mean of values (rows,) over the rows that do not only fill a batch."""
    if not filled:
        return values.mean()
    is_row = ~missing[:, 0]
    return values.where(is_row, 0.0).sum() / is_row.sum()


def cosine(
    vectors: torch.Tensor, labels: Labels, missing: torch.Tensor, scale: float, filled: bool = False
) -> torch.Tensor:
    """Compute the mean squared difference of cosines and labels (`CosineSimilarityLoss`)."""
    assert labels is not None
    cosines = functional.cosine_similarity(vectors[:, 0], vectors[:, 1])
    return _mean(functional.mse_loss(cosines, labels.float(), reduction="none"), missing, filled)


def mnrl(
    vectors: torch.Tensor, labels: Labels, missing: torch.Tensor, scale: float, filled: bool = False
) -> torch.Tensor:
    """Compute the cross-entropy of finding each anchor's positive among those of the batch and all its negatives.

    Henderson et al. 2017, section 4.4; van den Oord et al. 2018 (`MultipleNegativesRankingLoss`).
    """
    return find_positives(functional.normalize(vectors, dim=-1), missing, scale)


def find_positives(vectors: torch.Tensor, missing: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute the cross-entropy of `mnrl` for dot products of vectors as they are."""
    # the candidates, (texts - 1) * rows of them: all positives, then the first negatives of all rows, and so on
    candidates = vectors[:, 1:].transpose(0, 1).flatten(0, 1)
    scores = scale * vectors[:, 0] @ candidates.T
    scores = scores.masked_fill(missing[:, 1:].T.flatten(), float("-inf"))
    return functional.cross_entropy(scores, own_positives(missing))


def own_positives(missing: torch.Tensor) -> torch.Tensor:
    """Return the number of each row's positive, (rows,); `IGNORED` where a row lacks all texts."""
    numbers = torch.arange(len(missing), device=missing.device)
    return numbers.where(~missing[:, 0], IGNORED)


def margin_mse(
    vectors: torch.Tensor, labels: Labels, missing: torch.Tensor, scale: float, filled: bool = False
) -> torch.Tensor:
    """Compute the mean squared difference of the margins of dot products and of a teacher's scores.

    A margin is how much higher the positive scores than a negative (Hofstätter et al. 2020, `MarginMSELoss`).
    """
    assert labels is not None
    # (rows, texts - 1): scores of the positive and of each negative
    scores = (vectors[:, :1] * vectors[:, 1:]).sum(dim=-1)
    errors = (scores[:, :1] - scores[:, 1:] - labels.float().view(len(scores), -1)) ** 2
    present = ~missing[:, 2:]
    # a mean over a row's negatives, then over rows: with equally many negatives, that is the mean over all
    return _mean((errors * present).sum(dim=1) / present.sum(dim=1).clamp(min=1), missing, filled)


def simcse(
    vectors: torch.Tensor, labels: Labels, missing: torch.Tensor, scale: float, filled: bool = False
) -> torch.Tensor:
    """Compute the cross-entropy of finding each text again that was read twice, with other dropout (Gao et al. 2021).

    The first half of the rows has the texts, the other half the same ones once more.
    """
    once, again = (vectors.flatten(0, 1) if filled else vectors[where(missing, torch.logical_not)]).chunk(2)
    pairs = torch.stack([once, again], dim=1)
    lacking = missing.flatten()[: len(pairs), None].expand(-1, 2) if filled else missing.new_zeros(pairs.shape[:2])
    return mnrl(pairs, None, lacking, scale)


def class_cosent(
    vectors: torch.Tensor, labels: Labels, missing: torch.Tensor, scale: float, filled: bool = False
) -> torch.Tensor:
    """Compute `cosent` of all pairs of a batch's rows, of one text each: pairs of one label against other pairs.

    A batch with no pair of one of the two sorts has a loss of 0.
    """
    assert labels is not None
    vectors = functional.normalize(vectors[:, 0], dim=-1)
    scores = scale * vectors @ vectors.T

    def of_pairs(values: torch.Tensor, test: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        # each pair of two rows once: those of one label, or the others
        chosen = derive(labels, lambda labels: test(labels[:, None], labels[None, :]).triu(diagonal=1))
        return _chosen(values, chosen, missing, filled)

    # The sum over all differences (other pair - like pair) is a product of two sums, so no matrix of pairs by pairs is
    # needed: ln(1 + sum exp(other) * sum exp(-like)).
    others, likes = of_pairs(scores, torch.ne), of_pairs(-scores, torch.eq)
    return functional.softplus(others.logsumexp(dim=0) + likes.logsumexp(dim=0))


_FUNCTIONS: dict[str, _Loss] = dict(zip(LOSSES, (cosent, cosine, mnrl, margin_mse, simcse, class_cosent), strict=True))


# The positives of these rows are candidates of one another. More rows would take quadratic time.
_MAX_ROWS = 50_000
_BLOCK = 512  # anchors whose scores are in memory at a time


def mine_negatives(vectors: Numbers, texts: Sequence[Sequence[int]], count: int, margin: float) -> list[list[int]]:
    """Find the rows whose positives are the hardest negatives of each row.

    A candidate that is nearly as similar as the positive, or more, may well be right. So its score has to be lower by a
    share of the positive's (Moreira et al. 2024, section 3.2).

    Args:
        vectors: Vectors of length 1 of the anchor and the positive of each row, (rows, 2, dimension).
        texts: Numbers of the texts of each row, anchor and positive first.
        count: Maximum number of negatives per row.
        margin: Share of the positive's score.

    Returns:
        Numbers of at most `count` rows for each row, the hardest first.
    """
    negatives = []
    for start in range(0, len(texts), _MAX_ROWS):
        run = slice(start, start + _MAX_ROWS)
        negatives += [[start + row for row in rows] for rows in _mine_run(vectors[run], texts[run], count, margin)]
    return negatives


def add_negatives(features: Features, mined: Sequence[Sequence[int]]) -> None:
    """Add the positives of other rows to the texts of each feature."""
    log.info(f"mined {sum(map(len, mined)):,} hard negatives; {sum(not rows for rows in mined):,} rows have none")
    for name in [name for name in ("token_type_ids", "texts", "input_ids") if name in features[0]]:
        positives = [feature[name][1] for feature in features]
        longer = [
            [*feature[name], *(positives[row] for row in rows)] for feature, rows in zip(features, mined, strict=True)
        ]
        add_values(features, name, longer)


def _mine_run(vectors: Numbers, texts: Sequence[Sequence[int]], count: int, margin: float) -> list[list[int]]:
    # A text that is the positive of several rows is one candidate, in the first of these rows.
    first: dict[int, int] = {}
    candidate_rows = np.array([first.setdefault(numbers[1], row) for row, numbers in enumerate(texts)])
    candidates = np.array(sorted(first.values()))
    column, column_of = (
        np.searchsorted(candidates, candidate_rows),
        {texts[row][1]: at for at, row in enumerate(candidates)},
    )
    excluded: dict[int, set[int]] = {}  # anchor -> its positives and itself
    for numbers in texts:
        excluded.setdefault(numbers[0], set()).update(column_of[number] for number in numbers if number in column_of)
    mined: list[list[int]] = []
    for begin in range(0, len(texts), _BLOCK):
        rows = np.arange(begin, min(begin + _BLOCK, len(texts)))
        scores = vectors[rows, 0] @ vectors[candidates, 1].T
        right = scores[np.arange(len(rows)), column[rows]]
        scores[scores > (right - margin * np.abs(right))[:, None]] = -np.inf
        for line, row in enumerate(rows.tolist()):
            scores[line, list(excluded[texts[row][0]])] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        mined += [
            [int(candidates[at]) for at in line if np.isfinite(scores[number, at])] for number, line in enumerate(best)
        ]
    return mined
