"""Whether attributions name the words that a prediction rests on: what is left of it without them, and with them alone.

Comprehensiveness and sufficiency are those of DeYoung et al. 2020 ("ERASER", section 4.2), with one difference: words
are replaced by the baseline token and not deleted, so that positions stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.insight.attributions import Explained
from bertkit.insight.words import Word
from bertkit.metrics import Numbers
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.modeling.heads.targets import LOG_ODDS, LOG_PROBABILITY

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Of the words of a row that count as the reasons, at least one; the scores are means over these."""

RANDOM = "random"
_DRAWS = 3


@dataclass(frozen=True)
class Faithfulness:
    """How faithful a method is over some rows, with 95% intervals over rows."""

    method: str
    comprehensiveness: float
    """How much the score drops without the reasons: the higher the better."""
    comprehensiveness_interval: Interval
    sufficiency: float
    """How much it drops with the reasons alone: the lower the better."""
    sufficiency_interval: Interval
    above_random: Interval
    """Interval of the comprehensiveness beyond that of random attributions, row by row; None for random itself."""
    below_random: Interval
    """Likewise by how much less the score drops with the reasons alone."""


def drops(explained: Explained, words: Sequence[Word], attributions: Numbers, measure: str) -> tuple[float, float]:
    """Compute comprehensiveness and sufficiency of one row.

    Of log-odds and log-probabilities it is the probability that drops.

    Args:
        explained: the input.
        words: its words.
        attributions: what each of them adds, (words,).
        measure: what the score is.
    """
    shape = explained.replaceable().shape
    order = np.argsort(-attributions, kind="stable")
    counts = sorted({max(1, math.ceil(share * len(words))) for share in SHARES})
    shares = [np.ones(shape)]
    for count in counts:
        without, alone = np.ones(shape), np.ones(shape)
        for rank, number in enumerate(order):
            for position in words[number].positions:
                (without if rank < count else alone)[position] = 0.0
        shares += [without, alone]
    # All shortened inputs of a row at once, which `compute` splits into batches.
    scores = to_probability(explained.compute(np.stack(shares)), measure)
    fell = dict(zip(counts, (scores[0] - scores[1:]).reshape(-1, 2), strict=True))
    found = [fell[max(1, math.ceil(share * len(words)))] for share in SHARES]
    comprehensiveness, sufficiency = np.mean(found, axis=0)
    return float(comprehensiveness), float(sufficiency)


def random_drops(
    explained: Explained, words: Sequence[Word], measure: str, random: np.random.Generator
) -> tuple[float, float]:
    """Compute what `drops` does for random attributions, as the mean of some draws."""
    drawn = [drops(explained, words, random.random(len(words)), measure) for _ in range(_DRAWS)]
    comprehensiveness, sufficiency = np.mean(drawn, axis=0)
    return float(comprehensiveness), float(sufficiency)


def to_probability(scores: Numbers, measure: str) -> Numbers:
    """Turn log-odds and log-probabilities into probabilities; any other score stays.

    >>> to_probability(np.array([0.0]), "log-odds"), to_probability(np.array([2.0]), "cosine")
    (array([0.5]), array([2.]))
    """
    if measure == LOG_ODDS:
        return np.asarray(0.5 * (1 + np.tanh(scores / 2)))
    return np.asarray(np.exp(scores) if measure == LOG_PROBABILITY else scores)


def summarize(by_method: Mapping[str, Sequence[tuple[float, float]]]) -> list[Faithfulness]:
    """Sum up the drops of all rows, method by method; ``random`` must be one of them."""
    values = {name: np.array(rows) for name, rows in by_method.items()}  # (rows, 2) each
    summaries = []
    for name, drops_of_rows in values.items():
        (comprehensiveness, sufficiency), ends = drops_of_rows.mean(axis=0).tolist(), _mean_intervals(drops_of_rows)
        # Row by row: a drop says little without what random words of the same row would drop.
        better = (drops_of_rows - values[RANDOM]) * (1, -1)  # of sufficiency, less is better
        above, below = (None, None) if name == RANDOM else _mean_intervals(better)
        summaries.append(Faithfulness(name, comprehensiveness, ends[0], sufficiency, ends[1], above, below))
    return summaries


def _mean_intervals(columns: Numbers) -> list[Interval]:
    """Compute the 95% interval of the mean of each column, (rows, columns), over the same resampled rows."""
    names = list(map(str, range(columns.shape[1])))

    def average(rows: Numbers) -> dict[str, float]:
        return dict(zip(names, columns[rows].mean(axis=0).tolist(), strict=True))

    return list(bootstrap_intervals(average, len(columns)).values())
