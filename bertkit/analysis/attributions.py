"""Attribution of a model's score to the tokens of its input: integrated gradients and occlusion."""

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
"""Index of a text in a feature, and of a token in the text."""

_MAX_GAP = 0.01
_FIRST_STEPS = 16
_MAX_TOKENS = 4096  # per forward pass


@dataclass(frozen=True)
class ExplainedInput:
    """Input of a model, and the score that is explained."""

    model: Model
    feature: Feature
    collate: Collator
    score: Score
    """Function from the model's outputs for a batch to one number per input, shape (inputs,)."""
    baseline: int
    """Id of the token that replaces tokens, such as [MASK]."""
    positions: Sequence[Position]
    """Tokens that are explained. Special tokens are not, because an input without [CLS] would not be valid."""

    @cached_property
    def is_replaceable(self) -> np.ndarray:
        """Whether each token is in `positions`. Shape: (texts, tokens), including padding."""
        ids = self._batch(1)["input_ids"]
        mask = np.zeros(ids.reshape(-1, ids.shape[-1]).shape, dtype=bool)
        for position in self.positions:
            mask[position] = True
        return mask

    def compute(self, ratios: np.ndarray) -> np.ndarray:
        """Compute the scores of inputs whose token embeddings are mixed with the baseline's. Shape: (inputs,).

        Args:
            ratios: 1 for an unchanged token, 0 for the baseline, shape (inputs, texts, tokens).
        """
        scores = []
        with torch.no_grad():
            for chunk in _chunks(ratios):
                with mix_embeddings(self.model, torch.from_numpy(chunk), self.baseline):
                    scores.append(self._run_model(len(chunk)).cpu().double().numpy())
        return np.concatenate(scores)

    def integrate(self, steps: int) -> np.ndarray:
        """Integrate gradients along the line from the baseline to the input. Shape: (texts, tokens).

        Gauss-Legendre quadrature is far more accurate than a Riemann sum with the same number of steps.
        """
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        # Map the nodes from [-1, 1] to [0, 1], which is the line from the baseline to the input.
        nodes, weights = (nodes + 1) / 2, weights / 2
        # Shape (steps, texts, tokens). Special tokens stay at 1, so that every point is a valid input.
        ratios = np.where(self.is_replaceable, nodes[:, None, None], 1.0)
        attributions = np.zeros(self.is_replaceable.shape)
        for chunk, chunk_weights in zip(_chunks(ratios), _chunks(weights, ratios[0].size), strict=True):
            with torch.enable_grad(), mix_embeddings(self.model, torch.from_numpy(chunk), self.baseline) as mixture:
                scores = self._run_model(len(chunk))
                factors = torch.from_numpy(chunk_weights).to(scores.dtype).to(scores.device)
                # One backward pass suffices for all points: the gradient of the weighted sum of scores contains the
                # weighted gradient of each point.
                gradients = torch.autograd.grad((scores * factors).sum(), mixture.points)
            products = [
                (gradient * difference).sum(dim=-1).cpu().double()
                for gradient, difference in zip(gradients, mixture.differences, strict=True)
            ]
            attributions += torch.cat(products).reshape(chunk.shape).sum(dim=0).numpy()
        return np.where(self.is_replaceable, attributions, 0.0)

    def _run_model(self, count: int) -> torch.Tensor:
        return self.score(dict(self.model(**self._batch(count))))

    def _batch(self, count: int) -> dict[str, torch.Tensor]:
        return {name: values.to(self.model.device) for name, values in self.collate([self.feature] * count).items()}


@dataclass(frozen=True)
class Gradients:
    """Integrated gradients of the tokens of an input."""

    values: np.ndarray
    """Attribution of each token, (texts, tokens)."""
    score: float
    baseline_score: float
    """Score of the input with all explained tokens replaced by the baseline."""
    steps: int

    @property
    def gap(self) -> float:
        """Completeness error: abs(sum of attributions - score difference) / abs(score difference)."""
        difference = self.score - self.baseline_score
        error = abs(float(self.values.sum()) - difference)
        return error / abs(difference) if difference else float(error > 0)

    @property
    def is_complete(self) -> bool:
        """Whether the attributions sum to the score difference within 1%."""
        return self.gap <= _MAX_GAP


def integrated_gradients(explained: ExplainedInput, max_steps: int) -> Gradients:
    """Compute integrated gradients (Sundararajan et al. 2017), doubling the steps until the attributions add up.

    The exact attributions of all tokens sum to the score minus the baseline's score (completeness, proposition 1).
    """
    # Score the complete input, and the input without its explained tokens.
    without_text = np.where(explained.is_replaceable, 0.0, 1.0)
    score, baseline_score = explained.compute(np.stack([np.ones_like(without_text), without_text])).tolist()
    steps = min(_FIRST_STEPS, max_steps)
    while True:
        gradients = Gradients(explained.integrate(steps), score, baseline_score, steps)
        if gradients.is_complete or steps >= max_steps:
            return gradients
        steps = min(2 * steps, max_steps)


def occlusion(explained: ExplainedInput, groups: Sequence[Sequence[Position]]) -> np.ndarray:
    """Compute the drop of the score if the tokens of a group are replaced by the baseline. Shape: (groups,)."""
    # The first input is complete; each other input lacks one group.
    ratios = np.ones((1 + len(groups), *explained.is_replaceable.shape))
    for index, group in enumerate(groups, 1):
        for position in group:
            ratios[index][position] = 0.0
    scores = explained.compute(ratios)
    return np.asarray(scores[0] - scores[1:])


def _chunks(values: np.ndarray, size: int = 0) -> list[np.ndarray]:
    """Split an array over inputs into chunks of at most `_MAX_TOKENS` tokens; an input has `size` tokens."""
    count = max(1, _MAX_TOKENS // (size or values[0].size))
    return [values[first : first + count] for first in range(0, len(values), count)]
