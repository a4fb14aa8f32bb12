"""Compute metrics of labels and numbers, and find metrics by name: built-in, custom, or of the `evaluate` package.

Gold and predicted values are label ids of shape ``(rows,)``, 0/1 indicators of shape ``(rows, labels)`` if a row can
have several labels, or numbers of shape ``(rows,)`` for regression. Each metric requires at least one row. Names follow
scikit-learn and evaluate, and so do the definitions; a ratio whose denominator is 0 is 0.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertkit.errors import DataError, RecipeError, UnavailableError, did_you_mean
from bertkit.metrics import retrieval, squad, tags
from bertkit.metrics.intervals import (
    NOT_FINITE,
    UNDECLARED_METRIC,
    Metric,
    RowScores,
    f1_from_jaccard,
    raise_not_computed,
    ratio_metric,
)
from bertkit.recipe.plugins import custom_code_error, load_custom, untrusted_code_error
from bertkit.recipe.records import Recipe

T = TypeVar("T")


# Scores of the second of two labels.
_POSITIVE_LABEL_METRICS = ("f1", "precision", "recall")


def describe_positive_label(metrics: Iterable[str], label: str | None) -> list[str]:
    """Return a note that names the metrics of the positive label, or an empty list without such a metric or label.

    >>> describe_positive_label(["accuracy", "f1", "recall"], "spam")
    ["f1, recall: computed for 'spam', the second label."]
    """
    names = [name for name in metrics if name in _POSITIVE_LABEL_METRICS]
    return [f"{', '.join(names)}: computed for {label!r}, the second label."] if label is not None and names else []


EVALUATE_PREFIX = "evaluate:"
"""Prefix of metrics of the `evaluate` package; a family lists it if these metrics can have intervals."""


def count_correct_rows(gold: np.ndarray, predicted: np.ndarray) -> tuple[int, int]:
    """Return the number of rows whose labels are all correct, and the number of all rows."""
    is_correct = (gold == predicted).reshape(len(gold), -1).all(axis=1)
    return int(is_correct.sum()), len(is_correct)


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the fraction of rows whose labels are all correct (subset accuracy if rows have several labels)."""
    correct, rows = count_correct_rows(gold, predicted)
    return correct / rows


def f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the F1 of the second of two labels, the harmonic mean of its precision and recall.

    It is 0 if the label is neither gold nor predicted.

    Raises:
        RecipeError: If there are more than two labels.
    """
    correct, support, predictions = _count_positive("f1", gold, predicted)
    return 2 * correct / max(support + predictions, 1)


def f1_macro(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the unweighted mean of the labels' F1: rare labels count as much as frequent ones.

    The mean is over labels that are gold or predicted in some row, or over all labels if rows can have several.
    """
    return float(compute_label_scores(gold, predicted)["f1"].mean())


def f1_micro(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the F1 over the decisions on all labels together; accuracy if each row has one label."""
    if gold.ndim == 1:
        return accuracy(gold, predicted)
    correct = (gold & predicted).sum()
    return float(2 * correct / max(2 * correct + (gold != predicted).sum(), 1))


def f1_weighted(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean of the labels' F1, weighted by their number of gold rows; 0 without any gold label."""
    scores = compute_label_scores(gold, predicted)
    return float(np.average(scores["f1"], weights=scores["support"])) if scores["support"].sum() else 0.0


def balanced_accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean recall of the labels that are gold in some row; NaN if none is."""
    scores = compute_label_scores(gold, predicted)
    return float(scores["recall"][scores["support"] > 0].mean())


def matthews_correlation(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the correlation of gold and predicted labels, from -1 to 1; 0 is chance level.

    For two labels, it is Matthews' coefficient; for more, R_K (Gorodkin 2004, equation 8). It is 0 if all gold labels,
    or all predicted labels, are equal.

    Raises:
        RecipeError: If a row can have several labels.
    """
    if gold.ndim > 1:
        raise RecipeError("matthews_correlation is for one label per row", "use f1_macro or f1_micro")
    # Integers would overflow: the products below grow with the fourth power of the rows.
    counts = confusion_matrix(gold, predicted).astype(np.float64)
    rows, gold_counts, predicted_counts = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
    variances = (rows**2 - predicted_counts @ predicted_counts) * (rows**2 - gold_counts @ gold_counts)
    covariance = np.trace(counts) * rows - gold_counts @ predicted_counts
    return float(covariance / math.sqrt(variances)) if variances else 0.0


def confusion_matrix(gold: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Count rows by gold label (first axis) and predicted label (second axis). Shape: (labels, labels)."""
    # Encode each pair of labels as one number, gold * size + predicted, so that one `bincount` fills the matrix.
    size = int(max(gold.max(), predicted.max())) + 1
    return np.bincount(gold * size + predicted, minlength=size * size).reshape(size, size)


def compute_label_scores(gold: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """Return ``precision``, ``recall``, ``f1`` and ``support`` of each label. Shape: (labels,).

    If rows have one label, labels that are neither gold nor predicted are left out. Ratios of 0 / 0 are 0.
    """
    if gold.ndim > 1:
        correct, support, predictions = (gold & predicted).sum(axis=0), gold.sum(axis=0), predicted.sum(axis=0)
    else:
        counts = confusion_matrix(gold, predicted)
        occurs = (counts.sum(axis=0) + counts.sum(axis=1)) > 0
        counts = counts[np.ix_(occurs, occurs)]
        correct, support, predictions = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)
    return {
        "precision": correct / np.maximum(predictions, 1),
        "recall": correct / np.maximum(support, 1),
        "f1": 2 * correct / np.maximum(support + predictions, 1),
        "support": support,
    }


def pearsonr(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return Pearson's correlation, from -1 to 1; NaN for one row, or if gold or predicted values are constant."""
    return _correlate("pearsonr", gold, predicted)


def spearmanr(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return Spearman's correlation, from -1 to 1; NaN for one row, or if gold or predicted values are constant."""
    return _correlate("spearmanr", gold, predicted)


def mean_squared_error(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean squared difference."""
    return float(np.mean((gold - predicted) ** 2))


def mean_absolute_error(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean absolute difference."""
    return float(np.mean(np.abs(gold - predicted)))


def r2(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the fraction of the gold values' variance that predictions explain; NaN if gold values are constant.

    It is 1 at best, and 0 for predicting the mean of the gold values.
    """
    variation = float(np.sum((gold - gold.mean()) ** 2))
    return 1 - float(np.sum((gold - predicted) ** 2)) / variation if variation else math.nan


def _count_positive(name: str, gold: np.ndarray, predicted: np.ndarray) -> tuple[int, int, int]:
    """Return the number of rows in which the second of two labels is gold and predicted, is gold, and is predicted."""
    if gold.ndim > 1 or max(gold.max(), predicted.max()) > 1:
        raise RecipeError(f"{name} is for two labels, and this task has more", "use f1_macro or f1_micro")
    return int((gold & predicted).sum()), int(gold.sum()), int(predicted.sum())


def _count_ratio(name: str, gold: np.ndarray, predicted: np.ndarray) -> tuple[int, int]:
    """Count the rows whose ratio determines precision, recall or F1 of the second label.

    The Jaccard index determines F1: correct rows, divided by the rows for which the label is gold or predicted.
    """
    correct, support, predictions = _count_positive(name, gold, predicted)
    return correct, {"precision": predictions, "recall": support, "f1": support + predictions - correct}[name]


def _count_decisions(gold: np.ndarray, predicted: np.ndarray) -> tuple[int, int] | None:
    return count_correct_rows(gold, predicted) if gold.ndim == 1 else None


def _correlate(name: str, gold: np.ndarray, predicted: np.ndarray) -> float:
    """Compute a correlation of scipy, or return NaN if it is undefined."""
    if _explain_no_correlation(gold, predicted) != NOT_FINITE:
        return math.nan
    from scipy import stats

    # Nearly constant values cause warnings.
    with warnings.catch_warnings(action="ignore"):
        return float(getattr(stats, name)(gold, predicted).statistic)


def _explain_no_correlation(gold: np.ndarray, predicted: np.ndarray) -> str:
    if len(gold) < 2:
        return "one row has no correlation"
    for name, values in (("gold values", gold), ("predictions", predicted)):
        if (values == values[0]).all():
            return f"all {name} are the same"
    return NOT_FINITE


def _by_values(function: Callable[[np.ndarray, np.ndarray], T]) -> Callable[[RowScores], T]:
    """Convert a function of gold and predicted values to a function of the arrays that `Task.compare` returns."""
    return lambda row_scores: function(row_scores["gold"], row_scores["predicted"])


CLASSIFICATION_METRICS: Mapping[str, Metric] = {
    "accuracy": ratio_metric(_by_values(count_correct_rows)),
    "f1": Metric(_by_values(f1), _by_values(partial(_count_ratio, "f1")), f1_from_jaccard),
    "f1_macro": Metric(_by_values(f1_macro)),
    "f1_micro": Metric(_by_values(f1_micro), _by_values(_count_decisions)),
    "f1_weighted": Metric(_by_values(f1_weighted)),
    "precision": ratio_metric(_by_values(partial(_count_ratio, "precision"))),
    "recall": ratio_metric(_by_values(partial(_count_ratio, "recall"))),
    "balanced_accuracy": Metric(_by_values(balanced_accuracy)),
    "matthews_correlation": Metric(_by_values(matthews_correlation)),
}
"""Metrics of labels, by the names of scikit-learn and evaluate."""

REGRESSION_METRICS: Mapping[str, Metric] = {
    "pearsonr": Metric(_by_values(pearsonr), undefined=_by_values(_explain_no_correlation)),
    "spearmanr": Metric(_by_values(spearmanr), undefined=_by_values(_explain_no_correlation)),
    "mean_squared_error": Metric(_by_values(mean_squared_error), lower_is_better=True),
    "mean_absolute_error": Metric(_by_values(mean_absolute_error), lower_is_better=True),
    "r2": Metric(_by_values(r2), undefined="all gold values are the same"),
}
"""Metrics of numbers."""

VALUE_METRICS: Mapping[str, Metric] = {**CLASSIFICATION_METRICS, **REGRESSION_METRICS}


def _by_answers(function: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[RowScores], float]:
    """Convert a function of gold and predicted answers to a function of all questions of all rows.

    The arrays have the shape (rows, questions). A gold answer of -1 means that the row lacks the question.
    """

    def compute(row_scores: RowScores) -> float:
        is_answered = row_scores["gold"] >= 0
        return function(row_scores["gold"][is_answered], row_scores["predicted"][is_answered])

    return compute


QUESTION_METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(_by_answers(accuracy)),
    "f1_macro": Metric(_by_answers(f1_macro)),
    **{
        name: Metric(partial(retrieval.nan_mean, name), lower_is_better=True, undefined="no question has a score")
        for name in ("mean_absolute_error", "ranked_probability_score")
    },
}
"""Metrics of typed questions, over arrays of shape (rows, questions)."""

_EXTRA_GATES = ("ece", "size_mb")
"""Names that a gate of a recipe can have, in addition to the metrics of the recipe."""
_LIBRARY_ERRORS = ("mse", "mae", "mape", "smape", "mase", "wer", "cer", "brier_score", "mean_perplexity")
"""Lower is better for these scores of the `evaluate` package, which does not state their direction."""

_ERROR = Metric(raise_not_computed, lower_is_better=True)
_DECLARED: Mapping[str, Metric] = {
    **VALUE_METRICS,
    **QUESTION_METRICS,
    **tags.METRICS,
    **squad.METRICS,
    **retrieval.RERANKING,
    **retrieval.RETRIEVAL,
    **retrieval.ACTIVE_DIMENSIONS,
    **dict.fromkeys(("loss", "perplexity", *_EXTRA_GATES, *_LIBRARY_ERRORS), _ERROR),
}
"""Metrics of all families. A name that several families share has the same direction in all of them."""


def find_metric_by_name(metric: str) -> Metric:
    """Return the record of a metric of any family, for callers that do not know the family.

    The direction of a custom function is its attribute ``lower_is_better``, which is known after a recipe has loaded
    the function.
    """
    if is_custom(metric):
        module, _, name = metric.rpartition(".")
        function = getattr(sys.modules.get(module), name, None)
        return _ERROR if getattr(function, "lower_is_better", False) else UNDECLARED_METRIC
    return _DECLARED.get(metric, UNDECLARED_METRIC)


def is_lower_better(metric: str) -> bool:
    """Return whether a lower score is better.

    >>> is_lower_better("accuracy"), is_lower_better("perplexity")
    (False, True)
    """
    return find_metric_by_name(metric).lower_is_better


def with_direction(metric: str) -> str:
    """Return the name of a metric, with a note if a lower score is better.

    >>> with_direction("accuracy"), with_direction("mean_absolute_error")
    ('accuracy', 'mean_absolute_error (lower is better)')
    """
    return f"{metric} (lower is better)" if is_lower_better(metric) else metric


def rank_step(score: float | None, loss: float | None, *, greater_is_better: bool) -> tuple[bool, float]:
    """Return a sort key whose maximum is the best step: by score, or by loss if no step has a score.

    >>> max([(None, 0.4), (None, 0.3)], key=lambda step: rank_step(*step, greater_is_better=True))
    (None, 0.3)
    """
    if score is not None and math.isfinite(score):
        return True, score if greater_is_better else -score
    return False, -loss if loss is not None and math.isfinite(loss) else -math.inf


def compute_metrics(recipe: Recipe, gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Compute the metrics of a recipe from gold and predicted values; return metric -> score."""
    return compute_scores(VALUE_METRICS, {"gold": gold, "predicted": predicted}, recipe)


def compute_scores(metrics: Mapping[str, Metric], row_scores: RowScores, recipe: Recipe) -> dict[str, float]:
    """Compute the metrics of a recipe by a table; library and custom metrics read ``gold`` and ``predicted``."""
    scores: dict[str, float] = {}
    for name in recipe.metrics:
        if name in metrics:
            scores[name] = metrics[name].compute(row_scores)
        else:
            scores |= compute_library_metric(name, row_scores["gold"], row_scores["predicted"])
    return scores


def compute_library_metric(name: str, gold: Any, predicted: Any) -> dict[str, float]:
    """Compute a metric of the `evaluate` package, which can return several scores, or a custom metric.

    Args:
        name: ``evaluate:NAME``, or the importable name of a function.
        gold: Gold values, an array or a list of any values.
        predicted: Predicted values.

    Raises:
        RecipeError: If a custom metric does not return a number.
    """
    if name.startswith(EVALUATE_PREFIX):
        lists = (values.tolist() if isinstance(values, np.ndarray) else values for values in (gold, predicted))
        return _compute_with_evaluate(name.removeprefix(EVALUATE_PREFIX), *lists)
    value = load_custom("metric", name)(gold, predicted)
    if not isinstance(value, (int, float, np.number)):
        raise RecipeError(f"the metric {name} returned {value!r:.100}", "return a number")
    return {name: float(value)}


def is_script(metric: str) -> bool:
    """Return whether a metric is a script of `evaluate`, which is loaded from its path."""
    return metric.startswith(EVALUATE_PREFIX) and "/" in metric


def is_custom(metric: str) -> bool:
    """Return whether a metric is a custom function, ``package.module.name``."""
    return "." in metric and not metric.startswith(EVALUATE_PREFIX)


def is_library_metric(metric: str) -> bool:
    """Return whether a metric belongs to the `evaluate` package, or is a custom function."""
    return metric.startswith(EVALUATE_PREFIX) or is_custom(metric)


def runs_code(metric: str) -> bool:
    """Return whether a metric is custom code: a function of the user, or a script."""
    return is_custom(metric) or is_script(metric)


def check_metrics(recipe: Recipe, names: Collection[str]) -> None:
    """Check the metrics of a recipe, its best metric and its gates.

    Args:
        recipe: Recipe to check.
        names: Metrics of the task family.

    Raises:
        RecipeError: If a metric is not one of the family, or the best metric or a gate is not one of the recipe; the
            message suggests the closest names.
    """
    uses_evaluate = any(name.startswith(EVALUATE_PREFIX) for name in recipe.metrics)
    for name in recipe.metrics:
        if name not in names and not is_library_metric(name):
            raise RecipeError(f"no metric is called {name!r}", did_you_mean(name, names))
        if is_custom(name):
            load_custom("metric", name, recipe.trusted)
        if is_script(name) and not recipe.trusted:
            raise untrusted_code_error(f"the metric {name}")
    for name in recipe.gates.limits:
        if not uses_evaluate and name not in (*recipe.metrics, *_EXTRA_GATES):
            candidates = did_you_mean(name, [*recipe.metrics, *_EXTRA_GATES])
            raise RecipeError(f"a gate is about {name!r}, which is not among the metrics", candidates)
    # The best model is chosen by a metric that has an interval.
    choices = recipe.metrics if EVALUATE_PREFIX in names else [name for name in recipe.metrics if name in names]
    if recipe.best_metric not in choices and not (uses_evaluate and EVALUATE_PREFIX in names):
        noun = "metrics" if choices == recipe.metrics else "metrics with an interval"
        remedy = did_you_mean(recipe.best_metric, choices)
        raise RecipeError(f"best_metric {recipe.best_metric!r} is not among the {noun}", remedy)


def check_best_metric(recipe: Recipe, scores: dict[str, float]) -> None:
    """Check that the metric that chooses the best checkpoint was computed.

    Raises:
        RecipeError: If it is not among the scores; the message suggests the closest names.
    """
    if recipe.best_metric not in scores:
        raise RecipeError(f"best_metric {recipe.best_metric!r} is not scored", did_you_mean(recipe.best_metric, scores))


def _compute_with_evaluate(name: str, gold: list[Any], predicted: list[Any]) -> dict[str, float]:
    import evaluate

    # `evaluate.load` would run the code in a local folder of this name.
    if "/" not in name and Path(name).exists():
        message = f"the metric {name!r} would load the local path ./{name}"
        raise RecipeError(message, f"write evaluate:./{name} if you mean it")
    try:
        metric = evaluate.load(name)
    except ImportError as error:
        message = f"the metric evaluate:{name} needs another package: {str(error).splitlines()[0]}"
        raise UnavailableError(message) from None
    except FileNotFoundError:
        message = f"the metric evaluate:{name} is not a file and cannot be downloaded"
        raise UnavailableError(message, "use a built-in metric, or a path") from None
    except Exception as error:  # A script can raise any error.
        raise custom_code_error(f"the metric evaluate:{name}", error) from error
    try:
        scores = metric.compute(references=gold, predictions=predicted)
        return {key: float(value) for key, value in scores.items() if isinstance(value, (int, float, np.number))}
    # A script can raise any error, and scipy raises a ValueError for a single row.
    except Exception as error:
        if isinstance(error, ValueError) and not Path(name).exists():
            message = f"the metric evaluate:{name} rejects these {len(gold):,} rows: {error}"
            raise DataError(message, "score more rows, or use another metric") from None
        raise custom_code_error(f"the metric evaluate:{name}", error) from error
