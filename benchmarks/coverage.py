"""Measure how often the 95% interval of each metric contains the true score (`make scores`).

A trial draws rows from a synthetic population with a known score, and computes the interval that bertkit prints, from
fewer resamples. The trials alternate between populations, from a model that is often wrong to one that is almost always
right.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS as FOLDER
from benchmarks.harness import read_options, write_results
from bertkit.metrics.intervals import find_intervals
from bertkit.metrics.registry import REGRESSION_METRICS
from bertkit.metrics.reliability import calibration_errors, describe_calibration
from bertkit.metrics.retrieval import score_rankings
from bertkit.recipe import load_recipe
from bertkit.tasks import (
    contrastive,
    question_answering,
    reranking,
    text_classification,
    text_regression,
    token_classification,
    word_sense,
)
from bertkit.tokens.features import TaskContext

RESULTS = FOLDER / "coverage.json"
SIZES = (20, 100, 1000)
SAMPLES = 200
POPULATION = 20_000  # rows, drawn with replacement
QUALITIES = (0.6, 0.75, 0.85, 0.92, 0.97)

SURE = {"calibrated": 1.0, "overconfident": 1.15, "very overconfident": 2.0}
"""Factor of the logits of the true probabilities."""
CALIBRATION = "calibration"
CALIBRATION_SIZES = (300, 1000, 5000)
CALIBRATION_TRIALS = 500

RowScores = dict[str, np.ndarray[Any, Any]]
Random = np.random.Generator


def two_labels(quality: float, draw: Random) -> RowScores:
    """Draw two labels; the first is more frequent and easier."""
    gold = (draw.random(POPULATION) < 0.4).astype(int)
    right = draw.random(POPULATION) < np.array([quality, quality - 0.05])[gold]
    return {"gold": gold, "predicted": np.where(right, gold, 1 - gold)}


def four_labels(quality: float, draw: Random) -> RowScores:
    """Draw four labels; the rarest has a tenth of the rows."""
    gold = draw.choice(4, POPULATION, p=[0.4, 0.3, 0.2, 0.1])
    wrong = (gold + draw.choice([1, 2, 3], POPULATION, p=[0.6, 0.3, 0.1])) % 4
    return {"gold": gold, "predicted": np.where(draw.random(POPULATION) < quality, gold, wrong)}


def several_labels(quality: float, draw: Random) -> RowScores:
    """Draw rows with any number of four labels; some rows are harder than others."""
    gold = (draw.random((POPULATION, 4)) < [0.5, 0.4, 0.3, 0.2]).astype(int)
    ease = draw.beta(8 * quality, 8 * (1 - quality), (POPULATION, 1))
    return {"gold": gold, "predicted": np.where(draw.random((POPULATION, 4)) < ease, gold, 1 - gold)}


def numbers(quality: float, draw: Random) -> RowScores:
    """Draw numbers from 0 to 5 in quarters, as in STS-B, and predictions in this range that regress to the mean."""
    gold = np.round(20 * draw.beta(1.2, 1.0, POPULATION)) / 4
    noise = draw.normal(size=POPULATION) * np.sqrt(1 - quality**2)
    return {"gold": gold, "predicted": np.clip(2.7 + 1.4 * (quality * (gold - 2.7) / 1.4 + noise), 0, 5)}


def sentences(quality: float, draw: Random) -> RowScores:
    """Draw counts of tags and of entities of four types; the words of a sentence are equally hard."""
    words, shares = draw.integers(3, 36, POPULATION), np.array([0.4, 0.3, 0.2, 0.1])
    gold = np.stack([draw.multinomial(count, shares) for count in draw.poisson(words / 9)])
    ease = draw.beta(8 * quality, 8 * (1 - quality), (POPULATION, 1))
    right = draw.binomial(gold, ease)
    mistyped = np.roll(draw.binomial(gold - right, 0.6), 1, axis=1)
    entities = np.stack([right, gold, right + mistyped + draw.poisson(0.3 * (1 - ease) * shares)], axis=-1)
    right_words = draw.binomial(words, 1 - (1 - ease[:, 0]) / 4)
    return {"tags": np.stack([right_words, words, words], axis=-1)[:, None], "entities": entities, "strict": entities}


def questions(quality: float, draw: Random) -> RowScores:
    """Draw questions with a threshold of 0; half of them have an answer."""
    has_answer = draw.random(POPULATION) < 0.5
    partial = np.where(draw.random(POPULATION) < 0.4, np.round(draw.beta(2, 2, POPULATION), 1), 0.0)
    exact = (has_answer & (draw.random(POPULATION) < quality)).astype(float)
    f1 = np.where(has_answer & (exact == 0), partial, exact)
    odds = draw.normal(np.where(has_answer, -3, 3) * quality, 2.5)
    silent = (odds > 0).astype(float)
    return {
        "exact": np.where(silent, ~has_answer, exact).astype(float),
        "f1": np.where(silent, ~has_answer, f1).astype(float),
        **{"span_exact": exact, "span_f1": f1, "span_empty": np.zeros(POPULATION, dtype=bool)},
        **{"has_answer": has_answer, "null_odds": odds},
    }


def senses(quality: float, draw: Random) -> RowScores:
    """Draw four words with three senses; the first sense is the most frequent."""
    word = draw.integers(0, 4, POPULATION)
    sense = draw.choice(3, POPULATION, p=[0.6, 0.3, 0.1])
    predicted = np.where(draw.random(POPULATION) < quality, sense, draw.integers(0, 3, POPULATION))
    return {"gold": 3 * word + sense, "predicted": 3 * word + predicted, "word": word}


def rankings(quality: float, draw: Random) -> RowScores:
    """Draw queries with 30 documents, one to four of them relevant (grades 1 to 3); some are harder."""
    relevant = draw.integers(1, 5, POPULATION)
    grades = np.where(np.arange(30) < relevant[:, None], draw.integers(1, 4, (POPULATION, 30)), 0)
    ease = 4 * draw.beta(4 * quality, 4 * (1 - quality), (POPULATION, 1))
    order = np.argsort(-(ease * (grades > 0) + draw.normal(size=grades.shape)), axis=1)
    return score_rankings(order.tolist(), [dict(enumerate(row)) for row in grades.tolist()], 10, (1, 10))


def partners(quality: float, draw: Random) -> RowScores:
    """Draw ranks of a text's partner among a thousand texts; a fifth of the rows have no negative."""
    ranks = np.minimum(1000, np.floor(draw.pareto(0.8, POPULATION)) + 2)
    beats = (draw.random(POPULATION) < quality).astype(float)
    return {
        "rank": np.where(draw.random(POPULATION) < quality, 1, ranks).astype(int),
        "beats": np.where(draw.random(POPULATION) < 0.2, np.nan, beats),
    }


@dataclass(frozen=True)
class Case:
    """Kind of rows, the task family that scores them, and its recipe."""

    rows: str
    task: ModuleType
    draw: Callable[[float, Random], RowScores]
    recipe: str
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def make_setup(self) -> TaskContext:
        """Return the recipe with these metrics, and the labels."""
        changes = {"metrics": list(self.metrics), "best_metric": self.metrics[0]}
        recipe = load_recipe(self.recipe, {**changes, **{f"options.{name}": value for name, value in self.options}})
        return TaskContext(recipe, None, self.labels)  # type: ignore[arg-type]  # no score needs a tokenizer


SEARCH_METRICS = ("recall@1", "recall@10")
"""Metrics of `bertkit search eval` in addition to the metrics of a reranker."""

_SHARES = ("accuracy", "precision", "recall", "f1")
_MEANS = ("f1_macro", "f1_weighted", "balanced_accuracy", "matthews_correlation")
_TYPES = tuple(f"{prefix}-{name}" for name in ("A", "B", "C", "D") for prefix in "BI")
CASES = (
    Case("two labels", text_classification, two_labels, "classify", (*_SHARES, "matthews_correlation")),
    Case("four labels", text_classification, four_labels, "classify", ("accuracy", *_MEANS)),
    Case(
        "several labels", text_classification, several_labels, "classify",
        ("accuracy", "f1_micro", "f1_macro", "f1_weighted"), options=(("multi_label", True),),
    ),
    Case("numbers", text_regression, numbers, "regress", tuple(REGRESSION_METRICS)),
    Case("words and entities", token_classification, sentences, "ner",
         ("f1", "precision", "recall", "f1_macro", "accuracy"), ("O", *_TYPES)),
    Case("questions", question_answering, questions, "squad2",
         tuple(name for name, metric in question_answering.METRICS.items() if metric.is_score)),
    Case("senses", word_sense, senses, "wsd", tuple(word_sense.METRICS),
         tuple(f"{word}/{sense}" for word in "abcd" for sense in "123")),
    Case("rankings", reranking, rankings, "rerank", (*reranking.METRICS, *SEARCH_METRICS)),
    Case("partners", contrastive, partners, "similarity-triples", tuple(contrastive.METRICS)),
)  # fmt: skip


def measure(index: int, rows: int, trials: int) -> dict[str, dict[str, Any]]:
    """Count for each metric of a case the trials with an interval, and the intervals that contain the true score."""
    case, draw = CASES[index], np.random.default_rng((index, rows))
    context = case.make_setup()
    populations = [case.draw(quality, draw) for quality in QUALITIES]
    truths = [case.task.score(population, context) for population in populations]
    counts: dict[str, dict[str, Any]] = {name: {"methods": [], "intervals": 0, "held": 0} for name in case.metrics}
    for trial in range(trials):
        population, truth = populations[trial % len(QUALITIES)], truths[trial % len(QUALITIES)]
        sample = draw.integers(0, POPULATION, rows)
        row_scores = {name: values[sample] for name, values in population.items()}

        def score(row_scores: Any) -> dict[str, float]:
            return case.task.score(dict(row_scores), context)

        intervals = find_intervals(case.task.METRICS, score(row_scores), row_scores, score, samples=SAMPLES)
        for name, ends in intervals.bounds.items():
            if ends:
                counts[name]["methods"] = sorted({*counts[name]["methods"], intervals.methods[name]})
                counts[name]["intervals"] += 1
                counts[name]["held"] += ends[0] - 1e-9 <= truth[name] <= ends[1] + 1e-9
    return counts


def draw_decisions(count: int, sure: float, draw: Random) -> tuple[Any, Any]:
    """Draw decisions between two labels: confidence and true probability of being right, each of shape (count,)."""
    logits = np.abs(draw.normal(1.5, 1.5, count))
    return 1 / (1 + np.exp(-sure * logits)), 1 / (1 + np.exp(-logits))


def measure_calibration(name: str, rows: int, trials: int) -> list[dict[str, Any]]:
    """Count how often the intervals of a calibration's measures contain the value of a million decisions."""
    draw = np.random.default_rng((list(SURE).index(name), rows))
    confidence, probability = draw_decisions(10**6, SURE[name], draw)
    losses = -probability * np.log(confidence) - (1 - probability) * np.log(1 - confidence)
    truth = {**calibration_errors(confidence, probability), "nll": losses.mean()}
    counts = {metric: {"intervals": 0, "held": 0, "width": 0.0} for metric in truth}
    for _ in range(trials):
        confidence, probability = draw_decisions(rows, SURE[name], draw)
        gold = (draw.random(rows) < probability).astype(int)
        probabilities = np.stack([1 - confidence, confidence], axis=1)
        measures = describe_calibration(probabilities, gold, np.arange(rows), samples=SAMPLES)
        for metric, count in counts.items():
            if ends := measures[metric]["interval"]:
                count["intervals"] += 1
                count["held"] += bool(ends[0] - 1e-9 <= truth[metric] <= ends[1] + 1e-9)
                count["width"] += (ends[1] - ends[0]) / trials
    return [
        {"rows": name, "metric": metric, "n": rows, "trials": trials, "truth": float(f"{truth[metric]:.4g}"), **count}
        for metric, count in counts.items()
    ]


def main() -> None:
    options = read_options(__doc__, "", trials=200, processes=1)
    jobs = list(product(SIZES, range(len(CASES))))
    with ProcessPoolExecutor(options.processes) as pool:
        coverage = [pool.submit(measure, index, rows, options.trials) for rows, index in jobs]
        calibrations = [
            pool.submit(measure_calibration, name, rows, CALIBRATION_TRIALS)
            for rows, name in product(CALIBRATION_SIZES, SURE)
        ]
    cells = [
        {"rows": CASES[index].rows, "metric": name, "n": rows, **counts}
        for (rows, index), metrics in zip(jobs, coverage, strict=True)
        for name, counts in metrics.result().items()
    ]
    calibration = [cell for job in calibrations for cell in job.result()]
    content = {"trials": options.trials, "samples": SAMPLES, "cells": cells, CALIBRATION: calibration}
    write_results(content, RESULTS)


if __name__ == "__main__":
    main()
