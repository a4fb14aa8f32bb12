"""What the lines of `benchmarks.ranking` say: how well each score orders encoders, and the time that it saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np

DRAWS = 2000
METHODS = {
    "default: H-score, of numbers LogME": lambda line: line["scores"][line["by"]],
    "LogME": lambda line: line["scores"]["logme"],
    "kNN": lambda line: line["scores"]["knn"],
    "linear probe": lambda line: line["scores"]["linear_probe"],
    "default, of the last layer": lambda line: line["last"][line["by"]],
    "LogME, of the last layer": lambda line: line["last"]["logme"],
    "number of parameters": lambda line: line["parameters"],
}
"""Name -> what an encoder is ordered by; the last one reads no row."""

Pairs = Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
"""Recipe -> a number that encoders are ordered by, and what their fine-tuning came to."""


def correlations(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return Pearson's r and Kendall's tau-b; NaN where one of the two is constant.

    >>> correlations([1, 2, 3], [10, 20, 30])
    (1.0, 1.0)
    """
    from scipy.stats import kendalltau

    if len(set(first)) < 2 or len(set(second)) < 2:
        return float("nan"), float("nan")
    return round(float(np.corrcoef(first, second)[0, 1]), 12), round(float(kendalltau(first, second).statistic), 12)


def mean_correlations(pairs: Pairs, draws: int = DRAWS) -> dict[str, Any]:
    """Return the means of both correlations over recipes, with 95% intervals of encoders drawn anew in each recipe."""
    own = np.mean([correlations(*pair) for pair in pairs.values()], axis=0)
    random, drawn = np.random.default_rng(0), []
    for _ in range(draws):
        of_draw = []
        for first, second in pairs.values():
            chosen = random.integers(len(first), size=len(first))
            of_draw.append(correlations(first[chosen], second[chosen]))
        drawn.append(np.nanmean(of_draw, axis=0))
    ends = np.nanpercentile(drawn, [2.5, 97.5], axis=0)
    return {
        name: {"mean": round(float(own[place]), 3), "interval": [round(float(end), 3) for end in ends[:, place]]}
        for place, name in enumerate(("pearson", "kendall"))
    }


def summarize(runs: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how well each method orders encoders, on the recipes where all of them were fine-tuned and ranked."""
    tuned: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        tuned.setdefault(run["recipe"], {}).setdefault(run["encoder"], []).append(run["score"])
    ranked: dict[str, dict[str, Mapping[str, Any]]] = {}
    for line in ranks:
        ranked.setdefault(line["recipe"], {})[line["encoder"]] = line
    whole = {name: scores for name, scores in ranked.items() if set(scores) == set(tuned.get(name, {}))}
    scores = {name: np.array([mean(tuned[name][encoder]) for encoder in of]) for name, of in whole.items()}
    methods = {}
    for method, read in METHODS.items():
        pairs = {name: (np.array([read(line) for line in of.values()]), scores[name]) for name, of in whole.items()}
        methods[method] = {
            **mean_correlations(pairs),
            "of_recipes": {name: [round(one, 3) for one in correlations(*pair)] for name, pair in pairs.items()},
            "lost_by_the_first": {
                name: round(float(true.max() - true[given.argmax()]), 4) for name, (given, true) in pairs.items()
            },
        }
    counted = [run for run in runs if run["recipe"] in whole]
    return {
        "recipes": list(whole),
        "encoders": len(next(iter(whole.values()), ())),
        "seeds": {name: [len(tuned[name][encoder]) for encoder in of] for name, of in whole.items()},
        "methods": methods,
        "cpu_seconds": {
            "fine-tuning": round(sum(run["cpu_seconds"] for run in counted), 1),
            "ranking": round(sum(next(iter(of.values()))["cpu_seconds_of_all"] for of in whole.values()), 1),
        },
    }


def tables(runs: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown: how well each method orders, and the numbers of each encoder."""
    found = summarize(runs, ranks)
    lines = [
        "| ordered by | Pearson's r | Kendall's tau | lost by taking the first |",
        "|---|---|---|---|",
    ]
    for name, one in found["methods"].items():
        cells = [f"{one[key]['mean']:.2f} ({_ends(one[key]['interval'])})" for key in ("pearson", "kendall")]
        lost = ", ".join(f"{recipe} {value:.3f}" for recipe, value in one["lost_by_the_first"].items())
        lines.append(f"| {name} | {' | '.join(cells)} | {lost} |")
    lines += ["", "| recipe | encoder | fine-tuned | score | kNN | linear probe |", "|---|---|---|---|---|---|"]
    for line in ranks:
        if line["recipe"] in found["recipes"]:
            own = [run["score"] for run in runs if (run["recipe"], run["encoder"]) == (line["recipe"], line["encoder"])]
            values = [mean(own), line["scores"][line["by"]], line["scores"]["knn"], line["scores"]["linear_probe"]]
            cells = [f"{value:.3f}" for value in values]
            lines.append(f"| {line['recipe']} | {line['encoder']} | {' | '.join(cells)} |")
    seconds = found["cpu_seconds"]
    lines += ["", f"CPU seconds: fine-tuning {seconds['fine-tuning']}, ranking {seconds['ranking']}"]
    return "\n".join(lines)


def _ends(interval: Sequence[float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"
