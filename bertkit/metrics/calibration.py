"""Calibrate probabilities: temperatures, thresholds, abstention and prediction sets.

Each row of probabilities sums to 1; a label that a row lacks has probability 0. Shape: (rows, labels). A yes-or-no
label has two probabilities, of no and of yes.

Four rows have a yes-or-no label. The temperature 2 moves probabilities toward 0.5 and changes no decision. The best F1
is reached by thresholds between 0.5 and 0.25, whose middle is 0.375. Prediction sets that contain the gold label of 75%
of new rows take all labels whose probability is at least 0.25:

>>> yes, gold = np.array([0.9, 0.75, 0.5, 0.25]), np.array([1, 0, 1, 0])
>>> temper(as_pairs(yes), 2.0)[:, 1].round(3).tolist(), tune_threshold(yes, gold)
([0.75, 0.634, 0.5, 0.366], 0.375)
>>> find_set_threshold(as_pairs(yes)[np.arange(4), gold], 0.75)
0.25
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from bertkit.metrics.intervals import wilson_interval
from bertkit.metrics.probabilities import softmax
from bertkit.recipe.records import Option

OPTIONS: Mapping[str, Option] = {
    "temperature": Option(1.0, minimum=0.01, maximum=100),
    "abstain_below": Option(None, minimum=0, maximum=1),
    "set_above": Option(None, minimum=0, maximum=1),
}
"""Calibration options of task families that choose one of several labels."""


def read_thresholds(value: Any) -> dict[str, float] | None:
    """Read an option as label -> threshold; None stays None.

    Raises:
        ValueError: If a threshold is not a number from 0 to 1; the message states the expected form.
    """
    if value is None:
        return None
    thresholds = value.values() if isinstance(value, dict) else [None]
    if not all(isinstance(item, (int, float)) and not isinstance(item, bool) and 0 <= item <= 1 for item in thresholds):
        raise ValueError("give label: number between 0 and 1, such as {joy: 0.4}")
    return {str(name): float(threshold) for name, threshold in value.items()}


FOLDS = 5
LEVELS = 20  # coverage levels
# Minimum number of decisions to fit a separate temperature to a type.
MIN_TYPE_DECISIONS = 20

Temperature = float | dict[str, float]
"""One temperature for all decisions, or one per type of decision."""


class Decisions(NamedTuple):
    """Decisions between labels, for fitting a calibration; a row can have several decisions."""

    probabilities: np.ndarray
    """Probabilities of the labels. Shape: (decisions, labels)."""
    gold: np.ndarray
    """Index of each gold label. Shape: (decisions,)."""
    rows: np.ndarray
    """Row index of each decision. Shape: (decisions,)."""
    unit: Literal["row", "label", "word", "question"] = "row"
    """Unit that each decision is about."""
    types: Any = None
    """Type name of each decision, or None if all types share one temperature. Shape: (decisions,)."""

    def select(self, indices: np.ndarray) -> Decisions:
        """Return the decisions at some indices, or the decisions that a boolean mask selects."""
        probabilities, gold, rows = (values[indices] for values in self[:3])
        return Decisions(probabilities, gold, rows, self.unit, None if self.types is None else self.types[indices])

    def by_type(self) -> dict[str, np.ndarray]:
        """Return the indices of independent decisions per type; without types, there is one type with an empty name.

        If a row has several questions of one type, one of them is drawn at random. For labels of a row or words of a
        text, the result is empty, because their decisions depend on each other.
        """
        if self.unit in ("label", "word"):
            return {}
        order = np.random.default_rng(0).permutation(len(self.rows))
        types = np.full(len(order), "") if self.types is None else self.types
        indices_by_type = {}
        for name in np.unique(types):
            type_indices = order[types[order] == name]
            # `np.unique` returns the first index of each row, which is a random one, because the order is random.
            drawn_indices = type_indices[np.unique(self.rows[type_indices], return_index=True)[1]]
            indices_by_type[str(name)] = np.sort(drawn_indices)
        return indices_by_type


def temper(probabilities: np.ndarray, temperature: float | np.ndarray) -> np.ndarray:
    """Return probabilities whose logits are divided by a temperature (Guo et al. 2017, section 4.2).

    A temperature above 1 moves probabilities toward 1 / labels. It never changes their order; 0 stays 0.

    Args:
        probabilities: Probabilities that sum to 1. Shape: (..., labels).
        temperature: One temperature, or one per decision. Shape: (...,).
    """
    if np.all(temperature == 1):
        return probabilities
    # log(0) is -inf, which becomes 0 again.
    with np.errstate(divide="ignore"):
        return softmax(np.log(probabilities) / np.asarray(temperature)[..., None])


def temper_decisions(decisions: Decisions, temperature: Temperature | np.ndarray) -> np.ndarray:
    """Apply `temper` with the temperature of each decision's type; types without a temperature stay unchanged."""
    if isinstance(temperature, dict):
        temperature = np.array([temperature.get(name, 1.0) for name in decisions.types])
    return temper(decisions.probabilities, temperature)


def describe_temperature(temperature: Temperature) -> str:
    """Format a temperature, or the temperatures of all types."""
    if isinstance(temperature, dict):
        return ", ".join(f"{name} {value:.4g}" for name, value in temperature.items())
    return f"{temperature:.4g}"


def temper_labels(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Apply `temper` to each label separately, for labels that do not exclude each other. Shape: (..., labels)."""
    return probabilities if temperature == 1 else temper(as_pairs(probabilities), temperature)[..., 1]


def as_pairs(probabilities: np.ndarray) -> np.ndarray:
    """Return the probabilities of no and of yes, given the probabilities of yes. Shape: (..., 2)."""
    return np.stack([1 - probabilities, probabilities], axis=-1)


def fit_temperature(probabilities: np.ndarray, gold: np.ndarray) -> float:
    """Return the temperature with the lowest mean negative log likelihood (Guo et al. 2017, section 4.2).

    The search covers temperatures from 0.05 to 20, and the result is rounded to four significant digits.

    Args:
        probabilities: Probabilities of the labels. Shape: (rows, labels).
        gold: Index of each gold label. Shape: (rows,).
    """
    from scipy.optimize import minimize_scalar

    # The log likelihood is concave in 1 / temperature, so the search finds the only optimum.
    optimum = minimize_scalar(
        lambda log_inverse: compute_gold_losses(temper(probabilities, math.exp(-log_inverse)), gold).mean(),
        bounds=(-math.log(20), math.log(20)),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return float(f"{math.exp(-optimum.x):.4g}")


def fit_temperatures(decisions: Decisions) -> Temperature:
    """Fit one temperature to all decisions or, if they have types, one per type.

    A type with fewer than 20 decisions gets the temperature of all decisions.
    """
    overall = fit_temperature(decisions.probabilities, decisions.gold)
    if decisions.types is None:
        return overall
    temperatures = dict[str, float]()
    for name in np.unique(decisions.types):
        part = decisions.select(decisions.types == name)
        is_enough = len(part.gold) >= MIN_TYPE_DECISIONS
        temperatures[str(name)] = fit_temperature(part.probabilities, part.gold) if is_enough else overall
    return temperatures


class Fold(NamedTuple):
    """Held-out decisions, with the temperature and the thresholds that were fitted to all other decisions."""

    is_held_out: np.ndarray
    """Mask of the held-out decisions. Shape: (decisions,)."""
    temperature: Temperature
    thresholds: list[float]
    """Threshold of each label, or an empty list if a row has one label."""


def fit_folds(decisions: Decisions, groups: np.ndarray, num_labels: int) -> list[Fold]:
    """Split decisions into folds, and fit a temperature and thresholds to the decisions outside of each fold.

    Args:
        decisions: Decisions of all rows; several labels of a row are consecutive.
        groups: Group of each decision; a group is never split. Shape: (decisions,).
        num_labels: Number of labels.
    """
    folds, is_multi = [], decisions.unit == "label"
    for is_held_out in split_folds(groups):
        rest = decisions.select(~is_held_out)
        temperature, thresholds = fit_temperatures(rest), list[float]()
        if is_multi:
            thresholds = tune_thresholds(temper_decisions(rest, temperature)[:, 1], rest.gold, num_labels)
        folds.append(Fold(is_held_out, temperature, thresholds))
    return folds


def temper_folds(decisions: Decisions, folds: Sequence[Fold]) -> np.ndarray:
    """Apply to each fold the temperature that was fitted outside of the fold. Shape: (decisions, labels)."""
    tempered = np.empty_like(decisions.probabilities)
    for fold in folds:
        tempered[fold.is_held_out] = temper_decisions(decisions.select(fold.is_held_out), fold.temperature)
    return tempered


def split_folds(groups: np.ndarray) -> list[np.ndarray]:
    """Split rows at random into at most 5 folds of complete groups; return a mask of the rows per fold."""
    names, group_ids = np.unique(groups, return_inverse=True)
    # The groups a, b, a, c have the ids [0, 1, 0, 2]. Both rows of a are in one fold, which is drawn for the group.
    group_folds = np.random.default_rng(0).permutation(len(names)) % min(FOLDS, len(names))
    return [group_folds[group_ids] == fold for fold in range(group_folds.max() + 1)]


def compute_gold_losses(probabilities: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Return the negative log likelihood of each gold label, 708 for a probability of 0. Shape: (decisions,)."""
    likelihood = probabilities[np.arange(len(gold)), gold]
    return np.asarray(-np.log(np.maximum(likelihood, np.finfo(float).tiny)))


def tune_threshold(probabilities: np.ndarray, gold: np.ndarray) -> float:
    """Return the threshold on a label's probability with the best F1 on these rows, or 0.5 if no row has the label.

    The threshold is the middle between two probabilities. If several have the same F1, the highest is returned.

    Args:
        probabilities: Probability of the label. Shape: (rows,).
        gold: Whether a row has the label, 0 or 1. Shape: (rows,).
    """
    if not gold.any():
        return 0.5
    # In the example at the top, a threshold below the 1st, 2nd, ... highest probability selects [1, 1, 2, 2] gold rows,
    # with an F1 of 2 * [1, 1, 2, 2] / ([1, 2, 3, 4] + 2) = [0.67, 0.5, 0.8, 0.67]. The third F1 is best, and its
    # threshold is the middle of 0.5 and 0.25.
    order = np.argsort(-probabilities, kind="stable")
    sorted_values, num_correct = probabilities[order], np.cumsum(gold[order])
    f1 = 2 * num_correct / (np.arange(1, len(gold) + 1) + gold.sum())
    # No threshold separates equal probabilities.
    f1[:-1][sorted_values[:-1] == sorted_values[1:]] = -1
    best_index = int(f1.argmax())
    next_value = sorted_values[best_index + 1] if best_index + 1 < len(gold) else 0.0
    return float(f"{(sorted_values[best_index] + next_value) / 2:.6g}")


def tune_thresholds(probabilities: np.ndarray, gold: np.ndarray, num_labels: int) -> list[float]:
    """Apply `tune_threshold` to each label, given all labels of a row after another. Shape: (rows * labels,)."""
    yes, is_gold = (values.reshape(-1, num_labels) for values in (probabilities, gold))
    return [tune_threshold(yes[:, label], is_gold[:, label]) for label in range(num_labels)]


class Abstention(NamedTuple):
    """Threshold on confidence, with its coverage and precision on the rows that it was fitted to."""

    threshold: float
    coverage: float
    """Fraction of the rows that are answered."""
    precision: float
    """Fraction of the answered rows whose prediction is correct."""


def find_abstention(confidence: np.ndarray, is_correct: np.ndarray, precision: float) -> Abstention | None:
    """Return the threshold with the highest coverage whose precision is shown with 95% confidence.

    With probability .95 over these rows, precision on new rows of the same distribution is at least `precision`
    (selection with guaranteed risk, Geifman and El-Yaniv 2017, section 3). Twenty levels of coverage are tested, each
    by an exact binomial test (the lower end of Clopper and Pearson's interval) at level .05 / 20. A threshold is just
    above the confidence of one row. Given this row, the rows above are independent draws of all rows that are more
    confident, so the test is exact.

    Args:
        confidence: Probability of each prediction. Shape: (rows,).
        is_correct: Whether each prediction is correct, 0 or 1. Shape: (rows,).
        precision: Required precision from 0 to 1.

    Returns:
        The threshold, or None if no level of coverage passes its test.
    """
    from scipy.stats import binom

    ranks = {round(len(confidence) * level / LEVELS) for level in range(1, LEVELS)}
    values = np.sort(confidence)[::-1]
    thresholds = [0.0, *(float(np.nextafter(values[rank - 1], 2)) for rank in sorted(ranks, reverse=True) if rank)]
    # In descending order of coverage.
    for threshold in thresholds:
        is_answered = confidence >= threshold
        num_answered, num_correct = int(is_answered.sum()), int(is_correct[is_answered].sum())
        if num_answered and binom.cdf(num_answered - num_correct, num_answered, 1 - precision) <= 0.05 / LEVELS:
            return Abstention(threshold, num_answered / len(confidence), num_correct / num_answered)
    return None


def risk_coverage(confidence: np.ndarray, is_correct: np.ndarray, points: int = LEVELS) -> list[tuple[float, ...]]:
    """Return (coverage, precision, threshold) at `points` levels of coverage, in ascending order.

    A level of coverage answers the most confident rows; the threshold is the lowest confidence among them.
    """
    order = np.argsort(-confidence, kind="stable")
    correct = np.cumsum(is_correct[order])
    counts = sorted({max(1, round(len(order) * point / points)) for point in range(1, points + 1)})
    return [(n / len(order), float(correct[n - 1] / n), float(confidence[order][n - 1])) for n in counts]


def area_under_risk(confidence: np.ndarray, is_correct: np.ndarray) -> float:
    """Return the area under the risk-coverage curve: the mean error rate at a coverage of 1, 2, ... rows.

    Rows are answered in the order of their confidence (AURC, Geifman et al. 2019); 0 is best. NaN without rows.
    """
    correct = np.cumsum(is_correct[np.argsort(-confidence, kind="stable")])
    return float(np.mean(1 - correct / np.arange(1, len(correct) + 1)))


def find_set_threshold(gold_probabilities: np.ndarray, coverage: float) -> float:
    """Return the minimum probability of the labels in a prediction set, given the required coverage.

    Split conformal prediction with the score 1 - probability (Sadinle et al. 2019): over random draws of these rows and
    a new row of the same distribution, the new row's set contains its gold label with probability `coverage` or more.

    Args:
        gold_probabilities: Probability of each row's gold label. Shape: (rows,).
        coverage: Required probability from 0 to 1.

    Returns:
        The threshold, or 0.0, which takes all labels, if the rows are too few for this coverage.
    """
    rows = len(gold_probabilities)
    # In the example at the top, the gold labels have the probabilities 0.9, 0.25, 0.5 and 0.75. With a coverage of 75%,
    # the rank is ceil(5 * 0.75) = 4: with the new row there are five, and each of its five possible ranks is equally
    # likely.
    rank = math.ceil((rows + 1) * coverage)
    return 0.0 if rank > rows else float(np.sort(gold_probabilities)[::-1][rank - 1])


def measure_prediction_sets(
    probabilities: np.ndarray, gold: np.ndarray, rows: np.ndarray, coverage: float
) -> dict[str, Any]:
    """Measure prediction sets by cross-validation: each fold has the temperature and threshold of the other folds.

    Args:
        probabilities: Probabilities of the labels. Shape: (rows, labels).
        gold: Index of each gold label. Shape: (rows,).
        rows: Id of each row; rows with the same id are in one fold. Shape: (rows,).
        coverage: Required probability that a set contains the gold label.

    Returns:
        ``held``, the fraction of sets that contain the gold label; ``interval``, its 95% Wilson interval;
        ``mean_size``, the mean number of labels in a set; and ``single``, the fraction of sets with one label.
    """
    has_gold, sizes = np.empty(len(gold), dtype=bool), np.empty(len(gold), dtype=int)
    for is_held_out in split_folds(rows):
        rest = ~is_held_out
        tempered = temper(probabilities, fit_temperature(probabilities[rest], gold[rest]))
        gold_probabilities = tempered[np.arange(len(gold)), gold]
        threshold = find_set_threshold(gold_probabilities[rest], coverage)
        # A set is never empty: if no label reaches the threshold, it has the most probable one.
        row_thresholds = np.minimum(threshold, tempered[is_held_out].max(axis=1))
        has_gold[is_held_out] = gold_probabilities[is_held_out] >= row_thresholds
        # Labels that a row lacks have probability 0, which a threshold of 0 would include.
        in_set = (tempered[is_held_out] >= row_thresholds[:, None]) & (probabilities[is_held_out] > 0)
        sizes[is_held_out] = in_set.sum(axis=1)
    return {
        "held": float(has_gold.mean()),
        "interval": wilson_interval(int(has_gold.sum()), len(has_gold)),
        "mean_size": float(sizes.mean()),
        "single": float((sizes == 1).mean()),
    }


def apply_options(probabilities: np.ndarray, names: Sequence[Any], option: Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields that options add to a prediction: ``abstain`` and ``prediction_set``.

    A prediction set is never empty, and lists the most probable label first.

    Args:
        probabilities: Probabilities of the labels. Shape: (labels,).
        names: Name of each label.
        option: Returns the value of an option by its name.
    """
    fields: dict[str, Any] = {}
    if option("abstain_below") is not None:
        fields["abstain"] = bool(probabilities.max() < option("abstain_below"))
    if option("set_above") is not None:
        order = np.argsort(-probabilities, kind="stable")
        label_set = [names[index] for index in order if probabilities[index] >= option("set_above")]
        fields["prediction_set"] = label_set or [names[order[0]]]
    return fields
