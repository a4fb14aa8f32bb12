"""Losses over the vectors of a batch's texts, and mining of hard negatives.

Losses are functions of float32 vectors (rows, texts, dimension). Each has the values and gradients of the class of
sentence-transformers that its docstring names. Other losses are run by that library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import TypeAlias

import numpy as np
import torch
from torch.nn import functional

from bertkit.hardware.tensors import derive, find_indices, select
from bertkit.progress import log
from bertkit.recipe.plugins import import_extra
from bertkit.tokens.feature_cache import add_values
from bertkit.tokens.features import IGNORE_INDEX, Features, Tensor

INDEPENDENT = ("cosine", "margin_mse")
"""Losses that are means over rows. Other losses compare the rows of a batch, so the batch cannot be split."""

Labels: TypeAlias = "Tensor | None"
_Loss: TypeAlias = Callable[..., Tensor]
# The exponential is 0 and, unlike for -inf, the gradient is finite.
_MASKED_SCORE = -1e9


@dataclass(frozen=True)
class VectorLoss:
    """Loss with the options of a recipe."""

    name: str
    """One of `LOSSES`, or a loss of sentence-transformers."""
    scale: float = 20.0
    """Factor of cosines before a softmax, the inverse of a temperature."""
    dimensions: tuple[int, ...] = ()
    """Matryoshka dimensions (Kusupati et al. 2022): the losses of vectors truncated to these dimensions are summed;
    empty for the full vectors."""
    texts: int | None = None
    """Number of texts at the start of a row that ``simcse`` is trained on, or None for all texts."""

    def __post_init__(self) -> None:
        # Report a missing package before training.
        _find_function(self.name, self.scale)

    def __call__(self, vectors: Tensor, labels: Labels, missing: Tensor, static: bool = False) -> Tensor:
        """Compute the loss of a batch.

        Args:
            vectors: Vectors of the texts. Shape: (rows, texts, dimension).
            labels: Labels, or None if the loss takes none. Shape: (rows,), or (rows, texts - 2) for ``margin_mse``.
            missing: Whether a text is missing. Shape: (rows, texts).
            static: Whether shapes must not depend on the data; rows without a first text are then fillers.
        """
        compute = _find_function(self.name, self.scale)
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.float()
            if not self.dimensions:
                return compute(vectors, labels, missing, self.scale, static)
            truncated_vectors = (functional.normalize(vectors[..., :count], dim=-1) for count in self.dimensions)
            return torch.stack([compute(part, labels, missing, self.scale, static) for part in truncated_vectors]).sum()


def cosent(vectors: Tensor, labels: Labels, missing: Tensor, scale: float, static: bool = False) -> Tensor:
    """Compute a ranking loss: a row with a lower label should have a lower cosine (Su 2022, `CoSENTLoss`).

    The loss is ln(1 + sum of exp(scale * (cosine of i - cosine of j)) over all i, j such that i has the lower label).

    Three rows have the cosines 0.8, 0.8 and 0, and the labels 1, 0 and 0.5. Row 2 has a lower label than rows 1 and 3,
    and row 3 a lower label than row 1. The loss is ln(1 + exp(0.8 - 0.8) + exp(0.8 - 0) + exp(0 - 0.8)).

    >>> pairs = torch.tensor([[[1, 0], [0.8, 0.6]], [[0, 1], [0.6, 0.8]], [[1, 0], [0, 1]]])
    >>> round(cosent(pairs, torch.tensor([1, 0, 0.5]), torch.zeros(3, 2, dtype=torch.bool), scale=1.0).item(), 4)
    1.5422
    """
    assert labels is not None
    scores = scale * functional.cosine_similarity(vectors[:, 0], vectors[:, 1])
    # (rows, rows): score of row i minus score of row j, if row i has the lower label.
    differences = scores[:, None] - scores[None, :]
    is_lower = derive(labels, lambda labels: labels[:, None] < labels[None, :])
    errors = _select_pairs(differences, is_lower, missing, static)
    return torch.cat([scores.new_zeros(1), errors]).logsumexp(dim=0)


def _select_pairs(values: Tensor, pairs: Tensor, missing: Tensor, static: bool) -> Tensor:
    """Select the values (rows, rows) of some pairs of rows, to sum their exponentials."""
    if not static:
        return select(values, pairs)
    is_row = ~missing[:, 0]
    return values.where(pairs & is_row[:, None] & is_row[None, :], _MASKED_SCORE).flatten()


def _mean(values: Tensor, missing: Tensor, static: bool) -> Tensor:
    """Return the mean of values (rows,) without filler rows."""
    if not static:
        return values.mean()
    is_row = ~missing[:, 0]
    return values.where(is_row, 0.0).sum() / is_row.sum()


def cosine(vectors: Tensor, labels: Labels, missing: Tensor, scale: float, static: bool = False) -> Tensor:
    """Compute the mean squared difference between cosines and labels (`CosineSimilarityLoss`)."""
    assert labels is not None
    cosines = functional.cosine_similarity(vectors[:, 0], vectors[:, 1])
    return _mean(functional.mse_loss(cosines, labels.float(), reduction="none"), missing, static)


def mnrl(vectors: Tensor, labels: Labels, missing: Tensor, scale: float, static: bool = False) -> Tensor:
    """Compute the cross-entropy of finding each anchor's positive among all positives and negatives of the batch.

    Henderson et al. 2017, section 4.4; van den Oord et al. 2018 (`MultipleNegativesRankingLoss`).
    """
    return find_positives(functional.normalize(vectors, dim=-1), missing, scale)


def find_positives(vectors: Tensor, missing: Tensor, scale: float) -> Tensor:
    """Compute `mnrl` with dot products, without normalizing the vectors; `missing` and `scale` are the same.

    Two rows have an anchor and a positive. The first anchor has the scores 1 and 0.6, the second 0 and 0.8. The
    positive of row i is candidate i: the loss is the mean of -ln(e^1 / (e^1 + e^0.6)) and -ln(e^0.8 / (e^0 + e^0.8)).

    >>> rows = torch.tensor([[[1, 0], [1, 0]], [[0, 1], [0.6, 0.8]]])
    >>> round(find_positives(rows, torch.zeros(2, 2, dtype=torch.bool), scale=1.0).item(), 4)
    0.4421
    """
    # The (texts - 1) * rows candidates are the positives of all rows, then the first negatives of all rows, and so on.
    candidates = vectors[:, 1:].transpose(0, 1).flatten(0, 1)
    scores = scale * vectors[:, 0] @ candidates.T
    scores = scores.masked_fill(missing[:, 1:].T.flatten(), float("-inf"))
    return functional.cross_entropy(scores, get_positive_indices(missing))


def get_positive_indices(missing: Tensor) -> Tensor:
    """Return the index of each row's positive among the candidates, or `IGNORE_INDEX` for fillers. Shape: (rows,)."""
    return torch.arange(len(missing), device=missing.device).where(~missing[:, 0], IGNORE_INDEX)


def margin_mse(vectors: Tensor, labels: Labels, missing: Tensor, scale: float, static: bool = False) -> Tensor:
    """Compute the mean squared difference between the margins of student and teacher.

    A margin is the score of the positive minus the score of a negative (Hofstätter et al. 2020, `MarginMSELoss`). The
    student's scores are dot products; the labels are the teacher's margins.
    """
    assert labels is not None
    # (rows, texts - 1): scores of the positive and of the negatives
    scores = (vectors[:, :1] * vectors[:, 1:]).sum(dim=-1)
    errors = (scores[:, :1] - scores[:, 1:] - labels.float().view(len(scores), -1)) ** 2
    is_present = ~missing[:, 2:]
    # Average over the negatives of each row, then over rows.
    return _mean((errors * is_present).sum(dim=1) / is_present.sum(dim=1).clamp(min=1), missing, static)


def simcse(vectors: Tensor, labels: Labels, missing: Tensor, scale: float, static: bool = False) -> Tensor:
    """Compute the cross-entropy of finding each text among all texts read with another dropout mask (Gao et al. 2021).

    The second half of the rows repeats the first half.
    """
    text_vectors = vectors.flatten(0, 1) if static else vectors[find_indices(missing, torch.logical_not)]
    pairs = torch.stack(text_vectors.chunk(2), dim=1)
    is_missing = missing.flatten()[: len(pairs), None].expand(-1, 2) if static else missing.new_zeros(pairs.shape[:2])
    return mnrl(pairs, None, is_missing, scale)


def class_cosent(vectors: Tensor, labels: Labels, missing: Tensor, scale: float, static: bool = False) -> Tensor:
    """Compute `cosent` for all pairs of rows: pairs with equal labels should be more similar than other pairs.

    Each row has one text. The loss is 0 if all pairs have equal labels, or no pair has.
    """
    assert labels is not None
    vectors = functional.normalize(vectors[:, 0], dim=-1)
    scores = scale * vectors @ vectors.T

    def select_scores(values: Tensor, test: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        # Use each pair of rows once (upper triangle), if its labels pass the test.
        is_pair = derive(labels, lambda labels: test(labels[:, None], labels[None, :]).triu(diagonal=1))
        return _select_pairs(values, is_pair, missing, static)

    # The sum of exp(unequal pair - equal pair) over all combinations is a product of two sums, so no matrix of pairs by
    # pairs is needed: ln(1 + sum exp(unequal) * sum exp(-equal)).
    unequal, equal = select_scores(scores, torch.ne), select_scores(-scores, torch.eq)
    return functional.softplus(unequal.logsumexp(dim=0) + equal.logsumexp(dim=0))


LOSSES: dict[str, _Loss] = {loss.__name__: loss for loss in (cosent, cosine, mnrl, margin_mse, simcse, class_cosent)}


@cache
def _find_function(name: str, scale: float) -> _Loss:
    """Return one of bertkit's losses, or a function that computes a loss of sentence-transformers.

    Raises:
        UnavailableError: If sentence-transformers is not installed.
    """
    if name in LOSSES:
        return LOSSES[name]
    message = f"options.loss {name} needs the package sentence-transformers"
    module = import_extra("sentence_transformers.sentence_transformer.losses", message, "sentence-transformers")
    loss_class = getattr(module, name)
    arguments = {"scale": scale} if "scale" in signature(loss_class).parameters else {}
    # bertkit computes the vectors, so the loss needs no model.
    loss = loss_class(model=None, **arguments)

    def compute(vectors: Tensor, labels: Labels, missing: Tensor, scale: float, static: bool = False) -> Tensor:
        # Remove filler rows, which the library does not support.
        if static:
            (rows,) = find_indices(missing[:, 0], torch.logical_not)
            vectors, labels = vectors[rows], None if labels is None else labels[rows]
        value: Tensor = loss.compute_loss_from_embeddings(list(vectors.unbind(dim=1)), labels)
        return value

    return compute


# Rows whose positives are candidates for one another. The time is quadratic in this number.
_MAX_ROWS = 50_000
# Anchors whose scores are in memory at a time.
_BLOCK = 512


def mine_negatives(vectors: np.ndarray, texts: Sequence[Sequence[int]], count: int, margin: float) -> list[list[int]]:
    """Find hard negatives for each row among the positives of other rows.

    A candidate that is almost as similar to the anchor as the positive, or more similar, is probably a correct answer.
    So the score of a negative must be lower by a fraction of the positive's score (Moreira et al. 2024, section 3.2).

    Args:
        vectors: Vectors of length 1 of the anchor and the positive of each row. Shape: (rows, 2, dimension).
        texts: Ids of the texts of each row, anchor and positive first.
        count: Maximum number of negatives per row.
        margin: Fraction of the positive's score.

    Returns:
        indices of at most `count` rows per row, the hardest first; their positives are the row's negatives.
    """
    negatives = []
    for start in range(0, len(texts), _MAX_ROWS):
        chunk = slice(start, start + _MAX_ROWS)
        mined = _mine_chunk(vectors[chunk], texts[chunk], count, margin)
        negatives += [[start + row for row in rows] for rows in mined]
    return negatives


def add_negatives(features: Features, mined: Sequence[Sequence[int]]) -> None:
    """Add the positives of the mined rows to the texts of each feature."""
    log.info(f"mined {sum(map(len, mined)):,} hard negatives; {sum(not rows for rows in mined):,} rows have none")
    for name in [name for name in ("token_type_ids", "texts", "input_ids") if name in features[0]]:
        positives = [feature[name][1] for feature in features]
        texts = [
            [*feature[name], *(positives[row] for row in rows)] for feature, rows in zip(features, mined, strict=True)
        ]
        add_values(features, name, texts)


def _mine_chunk(vectors: np.ndarray, texts: Sequence[Sequence[int]], count: int, margin: float) -> list[list[int]]:
    """Mine negatives as `mine_negatives` does, with all positives as candidates."""
    # 1. List the candidates: the first row of each distinct positive.
    first_rows: dict[int, int] = {}
    candidate_rows = np.array([first_rows.setdefault(ids[1], row) for row, ids in enumerate(texts)])
    candidates = np.array(sorted(first_rows.values()))
    positive_columns = np.searchsorted(candidates, candidate_rows)
    columns = {texts[row][1]: column for column, row in enumerate(candidates)}
    # Anchor -> columns of the texts in its rows.
    excluded: dict[int, set[int]] = {}
    for ids in texts:
        excluded.setdefault(ids[0], set()).update(columns[text] for text in ids if text in columns)
    # 2. Score the candidates in blocks of anchors, and select the highest scores below the margin.
    mined: list[list[int]] = []
    for start in range(0, len(texts), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(texts)))
        scores = vectors[rows, 0] @ vectors[candidates, 1].T
        positives = scores[np.arange(len(rows)), positive_columns[rows]]
        scores[scores > (positives - margin * np.abs(positives))[:, None]] = -np.inf
        for index, row in enumerate(rows.tolist()):
            scores[index, list(excluded[texts[row][0]])] = -np.inf
        for row_scores, order in zip(scores, np.argsort(-scores, axis=1, kind="stable")[:, :count], strict=True):
            mined.append([int(candidates[column]) for column in order if np.isfinite(row_scores[column])])
    return mined
