"""Attribution of a number that a model computes to the tokens of its input: integrated gradients and occlusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bertkit.modeling.embeddings import mix_embeddings
from bertkit.modeling.info import Model
from bertkit.tokens.features import Collator, Feature

Score = Callable[[Any], torch.Tensor]
Position = tuple[int, int]
"""Index of a text of a feature, and of a token in it."""

_TOLERANCE = 0.01  # difference between the sum of attributions and what they explain, as a fraction of it
_FIRST_STEPS = 16
_MAX_TOKENS = 4096  # per forward pass


@dataclass(frozen=True)
class ExplainedInput:
    """An input of a model, and the number that is explained."""

    model: Model
    feature: Feature
    collate: Collator
    score: Score
    """Takes the model's outputs for a batch, and returns one number per input, shape (inputs,)."""
    baseline: int
    """Id of the token that carries no information."""
    positions: Sequence[Position]
    """Tokens of the text; without special tokens such as [CLS], the model would read another kind of input."""

    @cached_property
    def is_replaceable(self) -> np.ndarray:
        """Whether each token belongs to the text, (texts, tokens) with the padding that the model reads."""
        ids = self._batch(1)["input_ids"]
        mask = np.zeros(ids.reshape(-1, ids.shape[-1]).shape, dtype=bool)
        for position in self.positions:
            mask[position] = True
        return mask

    def compute(self, shares: np.ndarray) -> np.ndarray:
        """Compute the number for inputs whose tokens are mixed with the baseline, (inputs,).

        Args:
            shares: 1 for an unchanged token, 0 for the baseline, shape (inputs, texts, tokens).
        """
        scores = []
        with torch.no_grad():
            for chunk in _chunks(shares):
                with mix_embeddings(self.model, torch.from_numpy(chunk), self.baseline):
                    scores.append(self._run_model(len(chunk)).cpu().double().numpy())
        return np.concatenate(scores)

    def integrate(self, steps: int) -> np.ndarray:
        """Integrate gradients along the line from the baseline to the input, (texts, tokens).

        The integral is a Gauss-Legendre sum, which is far more exact than equal widths with the same number of steps.
        """
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        # The nodes are for -1 to 1; the line goes from 0, the baseline, to 1, the input.
        nodes, weights = (nodes + 1) / 2, weights / 2
        # (steps, texts, tokens): special tokens stay at 1, so that every point is a valid input.
        shares = np.where(self.is_replaceable, nodes[:, None, None], 1.0)
        total = np.zeros(self.is_replaceable.shape)
        for chunk, chunk_weights in zip(_chunks(shares), _chunks(weights, shares[0].size), strict=True):
            with torch.enable_grad(), mix_embeddings(self.model, torch.from_numpy(chunk), self.baseline) as mixed:
                scores = self._run_model(len(chunk))
                factors = torch.from_numpy(chunk_weights).to(scores.dtype).to(scores.device)
                # One backward pass for a chunk of points: the gradient of the weighted sum of their scores has the
                # weighted gradient of each point.
                gradients = torch.autograd.grad((scores * factors).sum(), mixed.points)
            products = [
                (gradient * difference).sum(dim=-1).cpu().double()
                for gradient, difference in zip(gradients, mixed.differences, strict=True)
            ]
            total += torch.cat(products).reshape(chunk.shape).sum(dim=0).numpy()
        return np.where(self.is_replaceable, total, 0.0)

    def _run_model(self, count: int) -> torch.Tensor:
        return self.score(dict(self.model(**self._batch(count))))

    def _batch(self, count: int) -> dict[str, torch.Tensor]:
        batch = self.collate([self.feature] * count)
        return {name: values.to(self.model.device) for name, values in batch.items()}


@dataclass(frozen=True)
class Gradients:
    """Integrated gradients of each token, and how well they add up."""

    values: np.ndarray
    """Shape (texts, tokens)."""
    score: float
    baseline_score: float
    """Score of the input with all words replaced by the baseline."""
    steps: int

    @property
    def gap(self) -> float:
        """Difference between the sum of the attributions and the difference from the baseline, as a fraction of it."""
        difference = self.score - self.baseline_score
        missing = abs(float(self.values.sum()) - difference)
        return missing / abs(difference) if difference else float(missing > 0)

    @property
    def is_complete(self) -> bool:
        """Whether they add up within 1%."""
        return self.gap <= _TOLERANCE


def integrated_gradients(explained: ExplainedInput, max_steps: int) -> Gradients:
    """Compute integrated gradients (Sundararajan et al. 2017) in more and more steps, until they add up.

    Attributions of all words sum to the score minus the score of the baseline ("completeness", proposition 1 there).
    """
    # Two forward passes give the difference that attributions have to explain: all tokens, and none.
    without_text = np.where(explained.is_replaceable, 0.0, 1.0)
    score, baseline_score = explained.compute(np.stack([np.ones_like(without_text), without_text])).tolist()
    steps = min(_FIRST_STEPS, max_steps)
    while True:
        gradients = Gradients(explained.integrate(steps), score, baseline_score, steps)
        if gradients.is_complete or steps >= max_steps:
            return gradients
        # The necessary steps differ from input to input, so they are doubled until the values add up.
        steps = min(2 * steps, max_steps)


def occlusion(explained: ExplainedInput, groups: Sequence[Sequence[Position]]) -> np.ndarray:
    """Compute by how much the score drops if the tokens of each group are replaced by the baseline, (groups,)."""
    # The first input is complete; each of the others lacks one group.
    shares = np.ones((1 + len(groups), *explained.is_replaceable.shape))
    for index, group in enumerate(groups, 1):
        for position in group:
            shares[index][position] = 0.0
    scores = explained.compute(shares)
    return np.asarray(scores[0] - scores[1:])


def _chunks(values: np.ndarray, size: int = 0) -> list[np.ndarray]:
    """Split inputs (inputs, ...) so that a chunk has few tokens; `size` is the number of tokens of an input."""
    count = max(1, _MAX_TOKENS // (size or values[0].size))
    return [values[first : first + count] for first in range(0, len(values), count)]
