"""Simulated comparisons: how often they reject without a difference, and how often they find a true one."""

from __future__ import annotations

import numpy as np

from bertkit.metrics.intervals import bootstrap_intervals
from bertkit.metrics.paired import (
    compare_paired,
    compare_seeds,
    compute_rows_needed,
    permutation_test,
    to_standard_error,
)
from bertkit.metrics.registry import accuracy, f1, matthews_correlation

SAMPLES = 200
POPULATION = 200_000  # rows that define the true difference
METRICS = {metric.__name__: metric for metric in (accuracy, f1, matthews_correlation)}


def score_by(names):
    """Build a function that computes these metrics."""
    return lambda rows: {name: METRICS[name](rows["gold"], rows["predicted"]) for name in names}


score_labels = score_by(METRICS)


def draw_labels(rows, draw, gain=0.0):
    """Draw answers of two systems that share what is hard; the logits of the second are higher by `gain`."""
    gold = (draw.random(rows) < 0.4).astype(int)
    hardness = draw.normal(1.5, 2, rows)
    answers = []
    for better in (0.0, gain):
        right = draw.random(rows) < 1 / (1 + np.exp(-hardness - better))
        answers.append({"gold": gold, "predicted": np.where(right, gold, 1 - gold)})
    return answers


def draw_seeds(rows, seeds, spread, draw):
    """Draw two equal systems of several seeds; rows are hard for all, for a system, or for one seed."""
    gold, shared = np.zeros(rows, dtype=int), draw.normal(1.2, 1.5, rows)
    systems = []
    for _ in range(2):
        hardness = shared + draw.normal(0, 1, rows)
        logits = hardness + draw.normal(0.0, spread, (seeds, 1)) + draw.normal(0, 1, (seeds, rows))
        wrong = draw.random((seeds, rows)) > 1 / (1 + np.exp(-logits))
        systems.append([{"gold": gold, "predicted": answers.astype(int)} for answers in wrong])
    return systems


def reject_rows(rows, trials):
    """Return how often p, or the interval, reports a difference that does not exist."""
    draw = np.random.default_rng((rows, False))
    found = {"p": {name: [] for name in METRICS}, "interval": {name: [] for name in METRICS}}
    for _ in range(trials):
        for name, difference in compare_paired(score_labels, *draw_labels(rows, draw), samples=SAMPLES).items():
            ends = difference.interval
            found["p"][name].append(difference.p is not None and difference.p < 0.05)
            found["interval"][name].append(ends is not None and not ends[0] <= 0 <= ends[1])
    return {test: {name: float(np.mean(values)) for name, values in cells.items()} for test, cells in found.items()}


def find_power(gain, trials):
    """Return how often a true difference is found in the number of rows that the formula returns."""
    draw = np.random.default_rng((7, round(1000 * gain)))
    systems = draw_labels(POPULATION, draw, gain)
    scores = [score_labels(system) for system in systems]

    def subtract(rows):
        before, after = (score_labels({key: values[rows] for key, values in system.items()}) for system in systems)
        return {name: after[name] - before[name] for name in after}

    power = {}
    for name, ends in bootstrap_intervals(subtract, POPULATION).items():
        rows = compute_rows_needed(scores[1][name] - scores[0][name], to_standard_error(ends), POPULATION)
        pairs = (draw_labels(rows, draw, gain) for _ in range(trials))
        p_values = [permutation_test(score_by([name]), *pair, samples=SAMPLES)[0][name] for pair in pairs]
        power[name] = sum(p is not None and p < 0.05 for p in p_values) / trials
    return power


def reject_seeds(rows, seeds, spread, trials):
    """Return how often seeds and rows together report a difference that does not exist."""
    draw = np.random.default_rng((rows, seeds, round(10 * spread), 0))
    score = score_by(["accuracy"])
    systems = (draw_seeds(rows, seeds, spread, draw) for _ in range(trials))
    p_values = [compare_seeds(score, *pair, samples=SAMPLES)["accuracy"].p for pair in systems]
    return sum(p is not None and p < 0.05 for p in p_values) / trials
