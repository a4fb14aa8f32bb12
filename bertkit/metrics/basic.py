"""Metrics by name: plain functions of gold and predicted values.

Values are label ids of shape ``(rows,)``, 0/1 indicators of shape ``(rows, labels)`` where a row may have
several labels, or numbers of shape ``(rows,)`` for regression. Names are those of scikit-learn and evaluate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import DataError, RecipeError, UnavailableError, closest
from bertkit.metrics import Numbers
from bertkit.metrics.intervals import Share, f1_of_share
from bertkit.recipe.plugins import custom_code_error, load_custom, untrusted_code_error
from bertkit.recipe.records import Recipe


class Undefined(float):
    """A NaN that knows why a metric has no value for some rows."""

    reason: str

    def __new__(cls, reason: str) -> Undefined:
        """Return a NaN with its reason."""
        self = super().__new__(cls, math.nan)
        self.reason = reason
        return self

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        """Return what a copy is made from."""
        return (self.reason,)


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
BESIDE_SCORES = ("ece", "size_mb")
"""Names that a gate of a recipe can have, in addition to the metrics of the recipe."""

_LOWER_IS_BETTER = {
    *("mean_squared_error", "mean_absolute_error", "ranked_probability_score"),
    *("query_active_dims", "document_active_dims"),
    *("loss", "perplexity", *BESIDE_SCORES),
    # Scores that metrics of evaluate return.
    *("mse", "mae", "mape", "smape", "mase", "wer", "cer", "brier_score", "mean_perplexity"),
}


def is_lower_better(metric: str) -> bool:
    """Return whether a lower score is better; for your own metric, after `check_metrics` has loaded it.

    >>> is_lower_better("accuracy"), is_lower_better("perplexity")
    (False, True)
    """
    return metric in _LOWER_IS_BETTER


_ONE_LABEL = ("f1", "precision", "recall")  # scores of the second of two labels


def describe_positive_label(metrics: Iterable[str], label: str | None) -> list[str]:
    """State which of the scores are computed for one label; an empty list without such a label.

    >>> describe_positive_label(["accuracy", "f1", "recall"], "spam")
    ["f1, recall: computed for 'spam', the second label."]
    """
    names = [name for name in metrics if name in _ONE_LABEL]
    return [f"{', '.join(names)}: computed for {label!r}, the second label."] if label is not None and names else []


def with_direction(metric: str) -> str:
    """Return the name of a metric, with a word on its direction where a lower score is better.

    >>> with_direction("accuracy"), with_direction("mean_absolute_error")
    ('accuracy', 'mean_absolute_error (lower is better)')
    """
    return f"{metric} (lower is better)" if is_lower_better(metric) else metric


EVALUATE_PREFIX = "evaluate:"
"""Prefix of metrics of the `evaluate` package; families list it if these metrics are to have intervals."""


def accuracy(gold: Numbers, predicted: Numbers) -> float:
    """Return the share of rows that are right; of several labels per row, all must be."""
    right = (gold == predicted).reshape(len(gold), -1).all(axis=1)
    return Share(right.mean(), int(right.sum()), len(right))


def f1(gold: Numbers, predicted: Numbers) -> float:
    """Return the F1 of the second of two labels, the harmonic mean of its precision and recall."""
    return _positive_class("f1", gold, predicted)["f1"]


def precision(gold: Numbers, predicted: Numbers) -> float:
    """Return the share of the rows predicted as the second of two labels that have it."""
    return _positive_class("precision", gold, predicted)["precision"]


def recall(gold: Numbers, predicted: Numbers) -> float:
    """Return the share of the rows with the second of two labels that are predicted so."""
    return _positive_class("recall", gold, predicted)["recall"]


def f1_macro(gold: Numbers, predicted: Numbers) -> float:
    """Return the unweighted mean of the labels' F1: rare labels count as much as frequent ones."""
    return float(per_label(gold, predicted)["f1"].mean())


def f1_micro(gold: Numbers, predicted: Numbers) -> float:
    """Return the F1 over the decisions on all labels together."""
    if gold.ndim == 1:
        return accuracy(gold, predicted)
    hits = (gold & predicted).sum()
    return float(2 * hits / max(2 * hits + (gold != predicted).sum(), 1))


def f1_weighted(gold: Numbers, predicted: Numbers) -> float:
    """Return the mean of the labels' F1, weighted by how often each occurs."""
    scores = per_label(gold, predicted)
    return float(np.average(scores["f1"], weights=scores["support"])) if scores["support"].sum() else 0.0


def balanced_accuracy(gold: Numbers, predicted: Numbers) -> float:
    """Return the mean recall of the labels that occur."""
    scores = per_label(gold, predicted)
    return float(scores["recall"][scores["support"] > 0].mean())


def matthews_correlation(gold: Numbers, predicted: Numbers) -> float:
    """Return the correlation of gold and predicted labels, from -1 to 1; 0 is chance level.

    For more than two labels this is R_K (Gorodkin 2004, equation 8), which for two is Matthews' coefficient.
    """
    if gold.ndim > 1:
        raise RecipeError("matthews_correlation is for one label per row", "use f1_macro or f1_micro")
    table = confusion_matrix(gold, predicted).astype(np.float64)
    rows, gold_counts, predicted_counts = table.sum(), table.sum(axis=1), table.sum(axis=0)
    spread = (rows**2 - predicted_counts @ predicted_counts) * (rows**2 - gold_counts @ gold_counts)
    return float((np.trace(table) * rows - gold_counts @ predicted_counts) / math.sqrt(spread)) if spread else 0.0


def confusion_matrix(gold: Numbers, predicted: Numbers) -> Numbers:
    """Count rows by gold label (down) and predicted label (across), shape ``(labels, labels)``."""
    size = int(max(gold.max(), predicted.max())) + 1
    return np.bincount(gold * size + predicted, minlength=size * size).reshape(size, size)


def per_label(gold: Numbers, predicted: Numbers) -> dict[str, Numbers]:
    """Return precision, recall, F1 and support of each label that occurs or is predicted, 0 where undefined."""
    if gold.ndim > 1:
        hits, support, guesses = (gold & predicted).sum(axis=0), gold.sum(axis=0), predicted.sum(axis=0)
    else:
        table = confusion_matrix(gold, predicted)
        hits, support, guesses = np.diag(table), table.sum(axis=1), table.sum(axis=0)
        seen = (support + guesses) > 0
        hits, support, guesses = hits[seen], support[seen], guesses[seen]
    return {
        "precision": hits / np.maximum(guesses, 1),
        "recall": hits / np.maximum(support, 1),
        "f1": 2 * hits / np.maximum(support + guesses, 1),
        "support": support,
    }


def pearsonr(gold: Numbers, predicted: Numbers) -> float:
    """Return the linear correlation, from -1 to 1; undefined for one row, and where one side is constant."""
    return _compute_correlation("pearsonr", gold, predicted)


def spearmanr(gold: Numbers, predicted: Numbers) -> float:
    """Return the rank correlation, from -1 to 1; undefined for one row, and where one side is constant."""
    return _compute_correlation("spearmanr", gold, predicted)


def mean_squared_error(gold: Numbers, predicted: Numbers) -> float:
    """Return the mean squared difference."""
    return float(np.mean((gold - predicted) ** 2))


def mean_absolute_error(gold: Numbers, predicted: Numbers) -> float:
    """Return the mean absolute difference."""
    return float(np.mean(np.abs(gold - predicted)))


def r2(gold: Numbers, predicted: Numbers) -> float:
    """Return the explained share of the gold values' variance; below 0, predicting their mean is better."""
    spread = float(np.sum((gold - gold.mean()) ** 2))
    return 1 - float(np.sum((gold - predicted) ** 2)) / spread if spread else Undefined("all gold values are the same")


def why_undefined(score: float | None) -> str | None:
    """Return why a score is not a finite number; None where it is one.

    >>> why_undefined(0.5), why_undefined(r2(np.ones(3), np.arange(3)))
    (None, 'all gold values are the same')
    """
    if score is not None and math.isfinite(score):
        return None
    return score.reason if isinstance(score, Undefined) else "it is not a finite number"


def rank_step(score: float | None, loss: float | None, *, greater_is_better: bool) -> tuple[bool, float]:
    """Return a key by which the best of several steps is the greatest: its score, or its loss where none has a score.

    >>> max([(None, 0.4), (None, 0.3)], key=lambda step: rank_step(*step, greater_is_better=True))
    (None, 0.3)
    """
    if score is not None and math.isfinite(score):
        return True, score if greater_is_better else -score
    return False, -loss if loss is not None and math.isfinite(loss) else -math.inf


def compute_metrics(recipe: Recipe, gold: Numbers, predicted: Numbers) -> dict[str, float]:
    """Compute the recipe's metrics, by name."""
    scores: dict[str, float] = {}
    for name in recipe.metrics:
        scores |= compute_metric(name, gold, predicted)
    return scores


def compute_metric(name: str, gold: Any, predicted: Any) -> dict[str, float]:
    """Compute a metric, which has several scores if the `evaluate` package computes several.

    Args:
        name: Name of a function of this module, a custom function, or a metric of the `evaluate` package.
        gold: Gold values, an array or (for custom metrics and the `evaluate` package) a list of any values.
        predicted: Predicted values.
    """
    if name.startswith(EVALUATE_PREFIX):
        values = (side.tolist() if isinstance(side, np.ndarray) else side for side in (gold, predicted))
        return _compute_with_evaluate(name.removeprefix(EVALUATE_PREFIX), *values)
    if not is_own(name):
        return {name: globals()[name](gold, predicted)}
    value = load_custom("metric", name)(gold, predicted)
    if not isinstance(value, (int, float, np.number)):
        raise RecipeError(f"the metric {name} returned {value!r:.100}", "return a number")
    return {name: float(value)}


def is_script(metric: str) -> bool:
    """Tell whether a metric is a script of `evaluate` that is found by its path."""
    return metric.startswith(EVALUATE_PREFIX) and "/" in metric


def is_own(metric: str) -> bool:
    """Tell whether a metric is a function of your own, ``package.module.name``."""
    return "." in metric and not metric.startswith(EVALUATE_PREFIX)


def is_library_metric(metric: str) -> bool:
    """Return whether a metric belongs to the `evaluate` package, or is a custom function."""
    return metric.startswith(EVALUATE_PREFIX) or is_own(metric)


def runs_code(metric: str) -> bool:
    """Return whether a metric is custom code: your function, or a script."""
    return is_own(metric) or is_script(metric)


def check_metrics(recipe: Recipe, names: Sequence[str]) -> None:
    """Check that the recipe's metrics are among a family's, and its best metric and its gates among the recipe's.

    Raises:
        RecipeError: an unknown metric; the message suggests the closest names.
    """
    uses_evaluate = any(name.startswith(EVALUATE_PREFIX) for name in recipe.metrics)
    for name in recipe.metrics:
        if name not in names and not is_library_metric(name):
            raise RecipeError(f"no metric is called {name!r}", closest(name, names))
        if is_own(name) and getattr(load_custom("metric", name, recipe.trusted), "lower_is_better", False):
            _LOWER_IS_BETTER.add(name)
        if is_script(name) and not recipe.trusted:
            raise untrusted_code_error(f"the metric {name}")
    for name in recipe.gates.limits:
        if not uses_evaluate and name not in (*recipe.metrics, *BESIDE_SCORES):
            known = closest(name, [*recipe.metrics, *BESIDE_SCORES])
            raise RecipeError(f"a gate is about {name!r}, which is not among the metrics", known)
    # The choice of the best model needs an interval.
    with_interval = recipe.metrics if EVALUATE_PREFIX in names else [name for name in recipe.metrics if name in names]
    is_known = recipe.best_metric in with_interval or (uses_evaluate and EVALUATE_PREFIX in names)
    if not is_known:
        which = "metrics" if with_interval == recipe.metrics else "metrics with an interval"
        remedy = closest(recipe.best_metric, with_interval)
        raise RecipeError(f"best_metric {recipe.best_metric!r} is not among the {which}", remedy)


def check_best_metric(recipe: Recipe, scores: dict[str, float]) -> None:
    """Check that the metric that is to choose the best checkpoint is among the scores.

    Raises:
        RecipeError: it is not; the message has the metrics that are.
    """
    if recipe.best_metric not in scores:
        raise RecipeError(f"best_metric {recipe.best_metric!r} is not scored", closest(recipe.best_metric, scores))


def _positive_class(name: str, gold: Numbers, predicted: Numbers) -> dict[str, Share]:
    """Return precision, recall and F1 of label 1 of two."""
    if gold.ndim > 1 or max(gold.max(), predicted.max()) > 1:
        raise RecipeError(f"{name} is for two labels, and this task has more", "use f1_macro or f1_micro")
    hits, support, guesses = int((gold & predicted).sum()), int(gold.sum()), int(predicted.sum())
    return {
        "precision": Share(hits / max(guesses, 1), hits, guesses),
        "recall": Share(hits / max(support, 1), hits, support),
        "f1": Share(2 * hits / max(support + guesses, 1), hits, support + guesses - hits, f1_of_share),
    }


def _compute_correlation(name: str, gold: Numbers, predicted: Numbers) -> float:
    """Compute a correlation of scipy; where it is undefined, say why."""
    if len(gold) < 2:
        return Undefined("one row has no correlation")
    for side, values in (("gold values", gold), ("predictions", predicted)):
        if (values == values[0]).all():
            return Undefined(f"all {side} are the same")
    from scipy import stats

    with warnings.catch_warnings(action="ignore"):  # of values that are nearly the same
        return float(getattr(stats, name)(gold, predicted).statistic)


def _compute_with_evaluate(name: str, gold: list[Any], predicted: list[Any]) -> dict[str, float]:
    import evaluate

    # evaluate would run the code it finds there instead
    if "/" not in name and Path(name).exists():
        what = f"./{name} here would be taken for the metric {name!r}"
        raise RecipeError(what, f"write evaluate:./{name} if you mean it")
    try:
        metric = evaluate.load(name)
    except ImportError as error:
        what = f"the metric evaluate:{name} needs another package: {str(error).splitlines()[0]}"
        raise UnavailableError(what) from None
    except FileNotFoundError:
        what = f"the metric evaluate:{name} is not a file and cannot be downloaded"
        raise UnavailableError(what, "use a built-in metric, or a path") from None
    except Exception as error:  # whatever a script raises, it is not bertkit that is wrong
        raise custom_code_error(f"the metric evaluate:{name}", error) from error
    try:
        scores = metric.compute(references=gold, predictions=predicted)
        return {key: float(value) for key, value in scores.items() if isinstance(value, (int, float, np.number))}
    except Exception as error:  # as above
        # scipy's, of a single row
        if isinstance(error, ValueError) and not Path(name).exists():
            what = f"the metric evaluate:{name} refuses these {len(gold):,} rows: {error}"
            raise DataError(what, "score more rows, or use another metric") from None
        raise custom_code_error(f"the metric evaluate:{name}", error) from error
