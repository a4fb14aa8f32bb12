"""What each token of an input adds to a number that the model computes: integrated gradients and occlusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.metrics import Numbers
from bertkit.modeling.embeddings import mixed_embeddings
from bertkit.modeling.info import Model
from bertkit.tokens.features import Collator, Feature, are_several

Score = Callable[[Any], torch.Tensor]

TOLERANCE = 0.01
"""How far attributions may be from adding up, as a share of what they add up to."""

_FIRST_STEPS = 16
_TOKENS = 4096  # of a forward pass


@dataclass(frozen=True)
class Explained:
    """An input of a model, and the number whose reasons are asked for."""

    model: Model
    feature: Feature
    collate: Collator
    score: Score
    """Takes the model's outputs for a batch, and returns the number for each of its inputs, shape (inputs,)."""
    baseline: int
    """Id of the token that stands for no information."""
    special: frozenset[int]
    """Ids of tokens that stay as they are."""

    def texts(self) -> list[list[int]]:
        """Return the token ids of each of its texts."""
        ids = self.feature["input_ids"]
        return [list(map(int, text)) for text in (ids if are_several(ids) else [ids])]

    def replaceable(self) -> Numbers:
        """Tell which tokens stand for text, shape (texts, tokens) as the model reads them."""
        ids = self._batch(1)["input_ids"]
        # Special tokens and padding stay: without [CLS] and [SEP] the model would read another kind of input.
        found = ids.reshape(-1, ids.shape[-1]).cpu()
        is_special = torch.isin(found, torch.tensor(sorted(self.special)))
        lengths = torch.tensor([len(text) for text in self.texts()])
        return np.asarray((~is_special & (torch.arange(found.shape[1]) < lengths[:, None])).numpy())

    def compute(self, shares: Numbers) -> Numbers:
        """Compute the number for inputs whose tokens are mixed with the baseline, (inputs,).

        Args:
            shares: 1 where a token is read as it is, 0 where the baseline is; shape (inputs, texts, tokens).
        """
        scores = []
        with torch.no_grad():
            for chunk in _chunks(shares):
                with mixed_embeddings(self.model, torch.from_numpy(chunk), self.baseline):
                    scores.append(self._run_model(len(chunk)).cpu().double().numpy())
        return np.concatenate(scores)

    def integrate(self, steps: int) -> Numbers:
        """Integrate gradients along the line from the baseline to the input, (texts, tokens).

        The integral is a Gauss-Legendre sum: of equally many steps, that of equal widths is far less exact.
        """
        replaceable = self.replaceable()
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        # The nodes are for -1 to 1; the line goes from 0, the baseline, to 1, the input.
        nodes, weights = (nodes + 1) / 2, weights / 2
        shares = np.where(replaceable, nodes[:, None, None], 1.0)
        total = np.zeros(replaceable.shape)
        for chunk, of_chunk in zip(_chunks(shares), _chunks(weights, shares[0].size), strict=True):
            with torch.enable_grad(), mixed_embeddings(self.model, torch.from_numpy(chunk), self.baseline) as mixed:
                scores = self._run_model(len(chunk))
                of_scores = torch.from_numpy(of_chunk).to(scores.dtype).to(scores.device)
                # One backward pass for a chunk of points: the sum of weighted scores has the weighted gradients of
                # each.
                gradients = torch.autograd.grad((scores * of_scores).sum(), mixed.points)
            products = [
                (gradient * difference).sum(dim=-1).cpu().double()
                for gradient, difference in zip(gradients, mixed.differences, strict=True)
            ]
            total += torch.cat(products).reshape(chunk.shape).sum(dim=0).numpy()
        return np.where(replaceable, total, 0.0)

    def _run_model(self, count: int) -> torch.Tensor:
        return self.score(dict(self.model(**self._batch(count))))

    def _batch(self, count: int) -> dict[str, torch.Tensor]:
        batch = self.collate([self.feature] * count)
        return {name: values.to(self.model.device) for name, values in batch.items()}


@dataclass(frozen=True)
class Gradients:
    """Integrated gradients of each token, and how well they add up."""

    values: Numbers
    """Shape (texts, tokens)."""
    score: float
    baseline_score: float
    """Score of the input with all words replaced by the baseline."""
    steps: int

    @property
    def gap(self) -> float:
        """How far the attributions are from adding up to the difference from the baseline, as a share of it."""
        difference = self.score - self.baseline_score
        missing = abs(float(self.values.sum()) - difference)
        return missing / abs(difference) if difference else float(missing > 0)

    @property
    def is_complete(self) -> bool:
        """Whether they add up within 1 %."""
        return self.gap <= TOLERANCE


def integrated_gradients(explained: Explained, most_steps: int) -> Gradients:
    """Compute integrated gradients (Sundararajan et al. 2017) in more and more steps, until they add up.

    Attributions of all words sum to the score minus that of the baseline ("completeness", proposition 1 there).
    """
    kept = explained.replaceable()
    ends = explained.compute(np.stack([np.ones(kept.shape), np.where(kept, 0.0, 1.0)]))
    steps = min(_FIRST_STEPS, most_steps)
    while True:
        found = Gradients(explained.integrate(steps), float(ends[0]), float(ends[1]), steps)
        if found.is_complete or steps >= most_steps:
            return found
        # How many steps it takes differs from input to input, so they are doubled until the values add up.
        steps = min(2 * steps, most_steps)


def occlusion(explained: Explained, groups: Sequence[Sequence[tuple[int, int]]]) -> Numbers:
    """Compute by how much the score drops where the tokens of each group are replaced by the baseline, (groups,)."""
    scores = explained.compute(replaced(explained.replaceable().shape, groups))
    return np.asarray(scores[0] - scores[1:])


def replaced(shape: tuple[int, ...], groups: Sequence[Sequence[tuple[int, int]]]) -> Numbers:
    """Build the shares of the whole input, and of the input without each group of tokens: (1 + groups, *shape)."""
    shares = np.ones((1 + len(groups), *shape))
    for number, group in enumerate(groups, 1):
        for position in group:
            shares[number][position] = 0.0
    return shares


def _chunks(values: Numbers, size: int = 0) -> list[Numbers]:
    """Split inputs (inputs, ...) so that a chunk has few tokens; `size` counts those of an input."""
    count = max(1, _TOKENS // (size or values[0].size))
    return [values[first : first + count] for first in range(0, len(values), count)]
