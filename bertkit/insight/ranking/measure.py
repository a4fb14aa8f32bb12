"""What one encoder scores on examples, and how much of that rests on a part of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bertkit.insight.ranking.examples import LayerFeatures, RankedExamples
from bertkit.insight.ranking.h_score import h_score
from bertkit.insight.ranking.layers import candidates, pool_layers
from bertkit.insight.ranking.logme import log_me
from bertkit.insight.ranking.probes import FOLDS, score_linear_probe, score_neighbors
from bertkit.insight.ranking.uncertainty import deal_blocks, interval_of, leave_blocks_out
from bertkit.metrics import Numbers
from bertkit.progress import SILENT, Progress, stage

H_SCORE, LOGME, NEIGHBORS, PROBE = "h_score", "logme", "knn", "linear_probe"
ORDERS = {H_SCORE: h_score, LOGME: log_me}
"""Name -> score that encoders can be ordered by."""

_SHUFFLES = 5


@dataclass(frozen=True)
class EncoderScores:
    """The scores of one encoder."""

    scores: dict[str, float]
    """Name -> value; the H-score is not there for numbers."""
    interval: tuple[float, float]
    """The 95% interval of the score that encoders are ordered by."""
    left_out: Numbers
    """Values of that score without each block of rows."""
    layer: str | int
    """What was scored: ``mean``, ``last``, or the number of a layer."""
    shuffled: float
    """Mean of that score where the gold values are shuffled: what many dimensions alone come to."""


def score_encoder(
    features: LayerFeatures, examples: RankedExamples, choice: str, by: str, progress: Progress = SILENT
) -> EncoderScores:
    """Compute the scores of an encoder, the interval of one of them, and its values without each block of rows.

    Args:
        features: vectors of all layers.
        examples: with their gold values.
        choice: ``mean``, ``last``, ``best`` or a number; the best layer is that with the highest score.
        by: the score that encoders are ordered by, one of `ORDERS`.
        progress: shows how far it is.
    """
    everything = np.ones(len(examples.gold), dtype=bool)
    options = candidates(choice, features.layers)
    blocks = deal_blocks(examples.origin)
    total = len(options) + int(blocks.max()) + 1 + len(ORDERS) + 1 + _SHUFFLES

    def measure(score: Callable[[Numbers, Numbers], float], chosen: Numbers) -> float:
        value = examples.score(lambda part: score(vectors[part], examples.gold[part]), chosen)
        tick(1)
        return value

    with stage(progress, "scoring", total) as tick:
        layer, best = options[0], -np.inf
        for option in options:
            vectors = features.pooled(pool_layers(option))
            value = measure(ORDERS[by], everything)
            if value > best:
                layer, best = option, value
        # The vectors of the last candidate are in memory; the best layer may be another.
        if len(options) > 1:
            vectors = features.pooled(pool_layers(layer))
        left_out = leave_blocks_out(lambda kept: measure(ORDERS[by], kept), blocks)
        others = [name for name in ORDERS if name != by and (name == LOGME or examples.is_named)]
        scores = {by: best, **{name: measure(ORDERS[name], everything) for name in others}}
        scores[NEIGHBORS] = measure(score_neighbors, everything)
        scores[PROBE] = examples.score(
            lambda part: score_linear_probe(
                vectors[part], examples.gold[part], deal_blocks(examples.origin[part], FOLDS)
            ),
            everything,
        )
        # The more dimensions, the higher a score by chance alone; so encoders are ordered by what lies above it.
        shuffled = _score_shuffled(vectors, examples, ORDERS[by])
        tick(_SHUFFLES + 1)
    ordered = {name: scores[name] for name in (H_SCORE, LOGME, NEIGHBORS, PROBE) if name in scores}
    return EncoderScores(ordered, interval_of(best, left_out), left_out, layer, shuffled)


def _score_shuffled(vectors: Numbers, examples: RankedExamples, score: Callable[[Numbers, Numbers], float]) -> float:
    """Compute the mean score over shuffles of gold values among the examples that are compared with one another."""
    random, everything = np.random.default_rng(0), np.ones(len(examples.gold), dtype=bool)

    def score_once(part: Numbers) -> float:
        return score(vectors[part], random.permutation(examples.gold[part]))

    return float(np.mean([examples.score(score_once, everything) for _ in range(_SHUFFLES)]))
