"""Metrics: plain functions of gold and predicted values, by name.

Values are label numbers of shape ``(rows,)``, 0/1 indicators of shape ``(rows, labels)`` where a row may have
several labels, or numbers of shape ``(rows,)`` for regression. Names are those of scikit-learn and evaluate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import RecipeError, UnavailableError, closest
from bertkit.recipe import Recipe

Values = np.ndarray[Any, Any]

CLASSIFICATION = (
    "accuracy",
    "f1",
    "f1_macro",
    "f1_micro",
    "f1_weighted",
    "precision",
    "recall",
    "balanced_accuracy",
    "matthews_correlation",
)
REGRESSION = ("pearsonr", "spearmanr", "mean_squared_error", "mean_absolute_error", "r2")
LOWER_IS_BETTER = {"mean_squared_error", "mean_absolute_error"}

FOREIGN = "evaluate:"
"""How the name of a metric of the `evaluate` package begins; families that can serve one list it."""


def accuracy(gold: Values, predicted: Values) -> float:
    """Give the share of rows that are right; with several labels a row, all of them must be."""
    return float((gold == predicted).reshape(len(gold), -1).all(axis=1).mean())


def f1(gold: Values, predicted: Values) -> float:
    """Give the F1 of the second of two labels (the harmonic mean of its precision and recall)."""
    return float(_of_two("f1", gold, predicted)["f1"])


def precision(gold: Values, predicted: Values) -> float:
    """Give the share of rows predicted as the second of two labels that have it."""
    return float(_of_two("precision", gold, predicted)["precision"])


def recall(gold: Values, predicted: Values) -> float:
    """Give the share of rows with the second of two labels that are predicted so."""
    return float(_of_two("recall", gold, predicted)["recall"])


def f1_macro(gold: Values, predicted: Values) -> float:
    """Give the plain mean of the labels' F1: rare ones weigh as much as frequent ones."""
    return float(per_label(gold, predicted)["f1"].mean())


def f1_micro(gold: Values, predicted: Values) -> float:
    """Give the F1 over all decisions together."""
    right, wrong = (gold == predicted), (gold != predicted)
    if gold.ndim == 1:
        return float(right.mean())
    hits = (gold & predicted).sum()
    return float(2 * hits / max(2 * hits + wrong.sum(), 1))


def f1_weighted(gold: Values, predicted: Values) -> float:
    """Give the mean of the labels' F1, weighted by how often each occurs."""
    found = per_label(gold, predicted)
    return float(np.average(found["f1"], weights=found["support"])) if found["support"].sum() else 0.0


def balanced_accuracy(gold: Values, predicted: Values) -> float:
    """Give the mean of the recall of the labels that occur."""
    found = per_label(gold, predicted)
    return float(found["recall"][found["support"] > 0].mean())


def matthews_correlation(gold: Values, predicted: Values) -> float:
    """Give the correlation of gold and predicted labels, from -1 to 1; 0 is chance.

    For more than two labels this is R_K (Gorodkin 2004, equation 8), which is Matthews' for two.
    """
    if gold.ndim > 1:
        raise RecipeError("matthews_correlation is for one label a row", "use f1_macro or f1_micro")
    table = confusion(gold, predicted).astype(np.float64)
    rows, given, guessed = table.sum(), table.sum(axis=1), table.sum(axis=0)
    spread = (rows**2 - guessed @ guessed) * (rows**2 - given @ given)
    return float((np.trace(table) * rows - given @ guessed) / math.sqrt(spread)) if spread else 0.0


def confusion(gold: Values, predicted: Values) -> Values:
    """Count rows by gold label (down) and predicted label (across), shape ``(labels, labels)``."""
    size = int(max(gold.max(), predicted.max())) + 1
    return np.bincount(gold * size + predicted, minlength=size * size).reshape(size, size)


def per_label(gold: Values, predicted: Values) -> dict[str, Values]:
    """Give precision, recall, F1 and support of each label that occurs or is predicted; 0 where undefined."""
    if gold.ndim > 1:
        hits, given, guessed = (gold & predicted).sum(axis=0), gold.sum(axis=0), predicted.sum(axis=0)
    else:
        table = confusion(gold, predicted)
        hits, given, guessed = np.diag(table), table.sum(axis=1), table.sum(axis=0)
        seen = (given + guessed) > 0
        hits, given, guessed = hits[seen], given[seen], guessed[seen]
    return {
        "precision": hits / np.maximum(guessed, 1),
        "recall": hits / np.maximum(given, 1),
        "f1": 2 * hits / np.maximum(given + guessed, 1),
        "support": given,
    }


def pearsonr(gold: Values, predicted: Values) -> float:
    """Give the linear correlation, from -1 to 1; not a number where one side is constant."""
    from scipy import stats

    return float(_quietly(stats.pearsonr, gold, predicted).statistic)


def spearmanr(gold: Values, predicted: Values) -> float:
    """Give the correlation of ranks, from -1 to 1; not a number where one side is constant."""
    from scipy import stats

    return float(_quietly(stats.spearmanr, gold, predicted).statistic)


def mean_squared_error(gold: Values, predicted: Values) -> float:
    """Give the mean squared difference."""
    return float(np.mean((gold - predicted) ** 2))


def mean_absolute_error(gold: Values, predicted: Values) -> float:
    """Give the mean absolute difference."""
    return float(np.mean(np.abs(gold - predicted)))


def r2(gold: Values, predicted: Values) -> float:
    """Give the share of the gold values' variance that is explained; below 0 is worse than their mean."""
    spread = float(np.sum((gold - gold.mean()) ** 2))
    return 1 - float(np.sum((gold - predicted) ** 2)) / spread if spread else math.nan


def measure(recipe: Recipe, gold: Values, predicted: Values) -> dict[str, float]:
    """Give the recipe's metrics by name."""
    scores: dict[str, float] = {}
    for name in recipe.metrics:
        if name.startswith(FOREIGN):
            scores.update(_measure_with_evaluate(name.removeprefix(FOREIGN), gold, predicted))
        else:
            scores[name] = globals()[name](gold, predicted)
    return scores


def check_metrics(recipe: Recipe, known: Sequence[str]) -> None:
    """Check that the recipe's metrics are known ones and its best metric is among them.

    Raises:
        RecipeError: an unknown metric; the closest names are given.
    """
    foreign = any(name.startswith(FOREIGN) for name in recipe.metrics)
    for name in recipe.metrics:
        if name not in known and not (name.startswith(FOREIGN) and FOREIGN in known):
            raise RecipeError(f"no metric is called {name!r}", closest(name, known))
    if not foreign and recipe.best_metric not in recipe.metrics:
        raise RecipeError(
            f"best_metric {recipe.best_metric!r} is not among the metrics",
            closest(recipe.best_metric, recipe.metrics),
        )


def _of_two(name: str, gold: Values, predicted: Values) -> dict[str, float]:
    if gold.ndim > 1 or max(gold.max(), predicted.max()) > 1:
        raise RecipeError(f"{name} is for two labels, and here are more", "use f1_macro or f1_micro")
    hits, given, guessed = int((gold & predicted).sum()), int(gold.sum()), int(predicted.sum())
    return {
        "precision": hits / max(guessed, 1),
        "recall": hits / max(given, 1),
        "f1": 2 * hits / max(given + guessed, 1),
    }


def _quietly(function: Any, *values: Values) -> Any:
    with warnings.catch_warnings():  # a constant side is an answer (nan), not an accident
        warnings.simplefilter("ignore")
        return function(*values)


def _measure_with_evaluate(name: str, gold: Values, predicted: Values) -> dict[str, float]:
    try:
        import evaluate
    except ImportError:
        raise UnavailableError(
            f"the metric evaluate:{name} needs the package evaluate", "pip install 'bertkit[evaluate]'"
        ) from None
    if "/" not in name and Path(name).exists():  # evaluate would run the code it finds there instead
        raise RecipeError(
            f"./{name} here would be taken for the metric {name!r}", f"write evaluate:./{name} if it is meant"
        )
    try:
        found = evaluate.load(name).compute(references=gold.tolist(), predictions=predicted.tolist())
    except ImportError as error:
        raise UnavailableError(f"the metric evaluate:{name} needs more: {str(error).splitlines()[0]}") from None
    except FileNotFoundError:
        raise UnavailableError(
            f"the metric evaluate:{name} is neither a file nor can it be fetched",
            "use a built-in metric, or a path",
        ) from None
    return {key: float(value) for key, value in found.items()}
