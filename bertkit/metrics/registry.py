"""Metrics of labels and numbers, all tables of metrics, metrics of the `evaluate` package, and custom metrics.

Values are label ids of shape ``(rows,)``, 0/1 indicators of shape ``(rows, labels)`` if a row may have
several labels, or numbers of shape ``(rows,)`` for regression. Names follow scikit-learn and evaluate.
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


_ONE_LABEL = ("f1", "precision", "recall")  # scores of the second of two labels


def describe_positive_label(metrics: Iterable[str], label: str | None) -> list[str]:
    """State which of the scores are computed for one label; an empty list without such a label.

    >>> describe_positive_label(["accuracy", "f1", "recall"], "spam")
    ["f1, recall: computed for 'spam', the second label."]
    """
    names = [name for name in metrics if name in _ONE_LABEL]
    return [f"{', '.join(names)}: computed for {label!r}, the second label."] if label is not None and names else []


EVALUATE_PREFIX = "evaluate:"
"""Prefix of metrics of the `evaluate` package; families list it if these metrics are to have intervals."""


def count_correct_rows(gold: np.ndarray, predicted: np.ndarray) -> tuple[int, int]:
    """Count the rows whose labels are all right, and all rows."""
    right = (gold == predicted).reshape(len(gold), -1).all(axis=1)
    return int(right.sum()), len(right)


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the fraction of rows whose labels are all right."""
    hits, rows = count_correct_rows(gold, predicted)
    return hits / rows


def f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the F1 of the second of two labels, the harmonic mean of its precision and recall."""
    hits, support, guesses = _count_positive("f1", gold, predicted)
    return 2 * hits / max(support + guesses, 1)


def f1_macro(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the unweighted mean of the labels' F1: rare labels count as much as frequent ones."""
    return float(per_label(gold, predicted)["f1"].mean())


def f1_micro(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the F1 over the decisions on all labels together."""
    if gold.ndim == 1:
        return accuracy(gold, predicted)
    hits = (gold & predicted).sum()
    return float(2 * hits / max(2 * hits + (gold != predicted).sum(), 1))


def f1_weighted(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean of the labels' F1, weighted by how often each occurs."""
    scores = per_label(gold, predicted)
    return float(np.average(scores["f1"], weights=scores["support"])) if scores["support"].sum() else 0.0


def balanced_accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean recall of the labels that occur."""
    scores = per_label(gold, predicted)
    return float(scores["recall"][scores["support"] > 0].mean())


def matthews_correlation(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the correlation of gold and predicted labels, from -1 to 1; 0 is chance level.

    For more than two labels this is R_K (Gorodkin 2004, equation 8), which for two is Matthews' coefficient.
    """
    if gold.ndim > 1:
        raise RecipeError("matthews_correlation is for one label per row", "use f1_macro or f1_micro")
    # Integers would overflow: the products below grow with the fourth power of the rows.
    table = confusion_matrix(gold, predicted).astype(np.float64)
    rows, gold_counts, predicted_counts = table.sum(), table.sum(axis=1), table.sum(axis=0)
    spread = (rows**2 - predicted_counts @ predicted_counts) * (rows**2 - gold_counts @ gold_counts)
    return float((np.trace(table) * rows - gold_counts @ predicted_counts) / math.sqrt(spread)) if spread else 0.0


def confusion_matrix(gold: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Count rows by gold label (down) and predicted label (across), shape ``(labels, labels)``."""
    # A pair of labels is one number, gold * size + predicted, so one count of numbers is the complete table.
    size = int(max(gold.max(), predicted.max())) + 1
    return np.bincount(gold * size + predicted, minlength=size * size).reshape(size, size)


def per_label(gold: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
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


def pearsonr(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the linear correlation, from -1 to 1; undefined for one row, and if either side is constant."""
    return _correlate("pearsonr", gold, predicted)


def spearmanr(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the rank correlation, from -1 to 1; undefined for one row, and if either side is constant."""
    return _correlate("spearmanr", gold, predicted)


def mean_squared_error(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean squared difference."""
    return float(np.mean((gold - predicted) ** 2))


def mean_absolute_error(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean absolute difference."""
    return float(np.mean(np.abs(gold - predicted)))


def r2(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the explained fraction of the gold values' variance; below 0, predicting their mean is better."""
    spread = float(np.sum((gold - gold.mean()) ** 2))
    return 1 - float(np.sum((gold - predicted) ** 2)) / spread if spread else math.nan


def _count_positive(name: str, gold: np.ndarray, predicted: np.ndarray) -> tuple[int, int, int]:
    """Count the rows with the second of two labels: right ones, gold ones and predicted ones."""
    if gold.ndim > 1 or max(gold.max(), predicted.max()) > 1:
        raise RecipeError(f"{name} is for two labels, and this task has more", "use f1_macro or f1_micro")
    return int((gold & predicted).sum()), int(gold.sum()), int(predicted.sum())


def _count_hits(name: str, gold: np.ndarray, predicted: np.ndarray) -> tuple[int, int]:
    """Count what precision, recall or F1 of the second label is a ratio of: hits and all that could be hits."""
    hits, support, guesses = _count_positive(name, gold, predicted)
    return hits, {"precision": guesses, "recall": support, "f1": support + guesses - hits}[name]


def _count_decisions(gold: np.ndarray, predicted: np.ndarray) -> tuple[int, int] | None:
    return count_correct_rows(gold, predicted) if gold.ndim == 1 else None


def _correlate(name: str, gold: np.ndarray, predicted: np.ndarray) -> float:
    """Compute a correlation of scipy, or return NaN if it is undefined."""
    if _why_no_correlation(gold, predicted) != NOT_FINITE:
        return math.nan
    from scipy import stats

    with warnings.catch_warnings(action="ignore"):  # values that are nearly the same
        return float(getattr(stats, name)(gold, predicted).statistic)


def _why_no_correlation(gold: np.ndarray, predicted: np.ndarray) -> str:
    if len(gold) < 2:
        return "one row has no correlation"
    for side, values in (("gold values", gold), ("predictions", predicted)):
        if (values == values[0]).all():
            return f"all {side} are the same"
    return NOT_FINITE


def _by_values(function: Callable[[np.ndarray, np.ndarray], T]) -> Callable[[RowScores], T]:
    """Return a function of gold and predicted values as one of the arrays that `Task.compare` returns."""
    return lambda row_scores: function(row_scores["gold"], row_scores["predicted"])


CLASSIFICATION: Mapping[str, Metric] = {
    "accuracy": ratio_metric(_by_values(count_correct_rows)),
    "f1": Metric(_by_values(f1), _by_values(partial(_count_hits, "f1")), f1_from_jaccard),
    "f1_macro": Metric(_by_values(f1_macro)),
    "f1_micro": Metric(_by_values(f1_micro), _by_values(_count_decisions)),
    "f1_weighted": Metric(_by_values(f1_weighted)),
    "precision": ratio_metric(_by_values(partial(_count_hits, "precision"))),
    "recall": ratio_metric(_by_values(partial(_count_hits, "recall"))),
    "balanced_accuracy": Metric(_by_values(balanced_accuracy)),
    "matthews_correlation": Metric(_by_values(matthews_correlation)),
}
"""Metrics of labels, by the names of scikit-learn and evaluate."""

REGRESSION: Mapping[str, Metric] = {
    "pearsonr": Metric(_by_values(pearsonr), undefined=_by_values(_why_no_correlation)),
    "spearmanr": Metric(_by_values(spearmanr), undefined=_by_values(_why_no_correlation)),
    "mean_squared_error": Metric(_by_values(mean_squared_error), lower_is_better=True),
    "mean_absolute_error": Metric(_by_values(mean_absolute_error), lower_is_better=True),
    "r2": Metric(_by_values(r2), undefined="all gold values are the same"),
}
"""Metrics of numbers."""

VALUES: Mapping[str, Metric] = {**CLASSIFICATION, **REGRESSION}


def _by_answers(function: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[RowScores], float]:
    """Return a function of the answers to all questions of all rows, where -1 means a missing question."""

    def compute(row_scores: RowScores) -> float:
        is_answered = row_scores["gold"] >= 0
        return function(row_scores["gold"][is_answered], row_scores["predicted"][is_answered])

    return compute


QUESTIONS: Mapping[str, Metric] = {
    "accuracy": Metric(_by_answers(accuracy)),
    "f1_macro": Metric(_by_answers(f1_macro)),
    **{
        name: Metric(partial(retrieval.nan_mean, name), lower_is_better=True, undefined="no question has a score")
        for name in ("mean_absolute_error", "ranked_probability_score")
    },
}
"""Metrics of typed questions, over arrays of shape (rows, questions)."""

BESIDE_SCORES = ("ece", "size_mb")
"""Names that a gate of a recipe can have, in addition to the metrics of the recipe."""

_LIBRARY_ERRORS = ("mse", "mae", "mape", "smape", "mase", "wer", "cer", "brier_score", "mean_perplexity")
"""Scores of metrics of the `evaluate` package, which does not state their direction."""

_ERROR = Metric(raise_not_computed, lower_is_better=True)
_DECLARED: Mapping[str, Metric] = {
    **VALUES,
    **QUESTIONS,
    **tags.METRICS,
    **squad.METRICS,
    **retrieval.RERANKING,
    **retrieval.RETRIEVAL,
    **retrieval.ACTIVE_DIMENSIONS,
    **dict.fromkeys(("loss", "perplexity", *BESIDE_SCORES, *_LIBRARY_ERRORS), _ERROR),
}
"""Metrics of all families: a name that several of them share is the same kind of score in all of them."""


def find_metric_by_name(metric: str) -> Metric:
    """Return the record of a metric of any family, for readers of scores who do not know the family.

    A custom function states its direction in its attribute ``lower_is_better``, once a recipe has loaded it.
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
    """Return a sort key whose maximum is the best step: by score, or by loss for steps without a score.

    >>> max([(None, 0.4), (None, 0.3)], key=lambda step: rank_step(*step, greater_is_better=True))
    (None, 0.3)
    """
    if score is not None and math.isfinite(score):
        return True, score if greater_is_better else -score
    return False, -loss if loss is not None and math.isfinite(loss) else -math.inf


def compute_metrics(recipe: Recipe, gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Compute the recipe's metrics of gold and predicted values, by name."""
    return compute_scores(VALUES, {"gold": gold, "predicted": predicted}, recipe)


def compute_scores(metrics: Mapping[str, Metric], row_scores: RowScores, recipe: Recipe) -> dict[str, float]:
    """Compute the recipe's metrics by a table; library and custom metrics read ``gold`` and ``predicted``."""
    scores: dict[str, float] = {}
    for name in recipe.metrics:
        if name in metrics:
            scores[name] = metrics[name].compute(row_scores)
        else:
            scores |= compute_library_metric(name, row_scores["gold"], row_scores["predicted"])
    return scores


def compute_library_metric(name: str, gold: Any, predicted: Any) -> dict[str, float]:
    """Compute a metric of the `evaluate` package, which can have several scores, or a custom function.

    Args:
        name: ``evaluate:NAME``, or the importable name of a function.
        gold: Gold values, an array or a list of any values.
        predicted: Predicted values.
    """
    if name.startswith(EVALUATE_PREFIX):
        values = (side.tolist() if isinstance(side, np.ndarray) else side for side in (gold, predicted))
        return _compute_with_evaluate(name.removeprefix(EVALUATE_PREFIX), *values)
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
    """Return whether a metric is custom code: your function, or a script."""
    return is_custom(metric) or is_script(metric)


def check_metrics(recipe: Recipe, names: Collection[str]) -> None:
    """Check that the recipe's metrics are among a family's, and its best metric and its gates among the recipe's.

    Raises:
        RecipeError: If a metric is unknown; the message suggests the closest names.
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
        if not uses_evaluate and name not in (*recipe.metrics, *BESIDE_SCORES):
            candidates = did_you_mean(name, [*recipe.metrics, *BESIDE_SCORES])
            raise RecipeError(f"a gate is about {name!r}, which is not among the metrics", candidates)
    # The choice of the best model needs an interval.
    with_interval = recipe.metrics if EVALUATE_PREFIX in names else [name for name in recipe.metrics if name in names]
    is_known = recipe.best_metric in with_interval or (uses_evaluate and EVALUATE_PREFIX in names)
    if not is_known:
        described = "metrics" if with_interval == recipe.metrics else "metrics with an interval"
        remedy = did_you_mean(recipe.best_metric, with_interval)
        raise RecipeError(f"best_metric {recipe.best_metric!r} is not among the {described}", remedy)


def check_best_metric(recipe: Recipe, scores: dict[str, float]) -> None:
    """Check that the metric that is to choose the best checkpoint is among the scores.

    Raises:
        RecipeError: If it is not; the message lists the available metrics.
    """
    if recipe.best_metric not in scores:
        raise RecipeError(f"best_metric {recipe.best_metric!r} is not scored", did_you_mean(recipe.best_metric, scores))


def _compute_with_evaluate(name: str, gold: list[Any], predicted: list[Any]) -> dict[str, float]:
    import evaluate

    # evaluate would run the code in that folder instead.
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
    except Exception as error:  # A script can raise any error, and bertkit is not to blame.
        raise custom_code_error(f"the metric evaluate:{name}", error) from error
    try:
        scores = metric.compute(references=gold, predictions=predicted)
        return {key: float(value) for key, value in scores.items() if isinstance(value, (int, float, np.number))}
    except Exception as error:  # The library or a script can raise any error; scipy a ValueError for a single row.
        if isinstance(error, ValueError) and not Path(name).exists():
            message = f"the metric evaluate:{name} rejects these {len(gold):,} rows: {error}"
            raise DataError(message, "score more rows, or use another metric") from None
        raise custom_code_error(f"the metric evaluate:{name}", error) from error
