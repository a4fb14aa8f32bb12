"""Calibrated probabilities: temperature, thresholds, abstention, prediction sets.

Probabilities are arrays (rows, labels) whose rows sum to 1; a label that a row lacks has probability 0. A yes-or-no
label is a row of two.

Four rows of a yes-or-no label. A temperature above 1 makes probabilities less sure and changes no decision. A threshold
lies in the gap with the best F1. A set that is to hold the gold label of three rows in four takes all labels from 0.25:

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
"""Options of the families that choose one label of several."""


def read_thresholds(value: Any) -> dict[str, float] | None:
    """Read thresholds by label; raises ValueError with the expected form."""
    if value is None:
        return None
    thresholds = value.values() if isinstance(value, dict) else [None]
    if not all(isinstance(item, (int, float)) and not isinstance(item, bool) and 0 <= item <= 1 for item in thresholds):
        raise ValueError("give label: number between 0 and 1, such as {joy: 0.4}")
    return {str(name): float(threshold) for name, threshold in value.items()}


FOLDS = 5
LEVELS = 20  # tested levels of coverage
MIN_TYPE_DECISIONS = 20  # to fit a separate temperature to a type

Temperature = float | dict[str, float]
"""One temperature for all decisions, or one per type of decision."""


class Decisions(NamedTuple):
    """Decisions between labels, for fitting a calibration; a row can have several decisions."""

    probabilities: np.ndarray
    """Probabilities of the labels, (decisions, labels)."""
    gold: np.ndarray
    """Label indices, (decisions,)."""
    rows: np.ndarray
    """Row index of each decision, (decisions,)."""
    per: Literal["row", "label", "word", "question"] = "row"
    """Item that a decision is about."""
    types: Any = None
    """Type name of each decision, (decisions,), if types are calibrated separately."""

    def select(self, indices: np.ndarray) -> Decisions:
        """Return the decisions at some indices, or the decisions that a boolean mask selects."""
        probabilities, gold, rows = (values[indices] for values in self[:3])
        return Decisions(probabilities, gold, rows, self.per, None if self.types is None else self.types[indices])

    def by_type(self) -> dict[str, np.ndarray]:
        """Return the indices of independent decisions per type; without types, there is one type with an empty name.

        If a row has several questions of one type, one of them is drawn. The result is empty for labels of a row and
        words of a text, because they depend on each other.
        """
        if self.per in ("label", "word"):
            return {}
        order = np.random.default_rng(0).permutation(len(self.rows))
        types = np.full(len(order), "") if self.types is None else self.types
        parts = {}
        for name in np.unique(types):
            # `order` is random, and `np.unique` returns the first index of each row, so the decision is drawn at
            # random.
            type_indices = order[types[order] == name]
            parts[str(name)] = np.sort(type_indices[np.unique(self.rows[type_indices], return_index=True)[1]])
        return parts


def temper(probabilities: np.ndarray, temperature: float | np.ndarray) -> np.ndarray:
    """Divide the logits behind probabilities by a temperature (Guo et al. 2017, section 4.2); 1 changes nothing."""
    if np.all(temperature == 1):
        return probabilities
    with np.errstate(divide="ignore"):  # log(0) is minus infinity and stays so
        return softmax(np.log(probabilities) / np.asarray(temperature)[..., None])


def temper_decisions(decisions: Decisions, temperature: Temperature | np.ndarray) -> np.ndarray:
    """Apply `temper` with the temperature of each decision's type; a type without a temperature is unchanged."""
    if isinstance(temperature, dict):
        temperature = np.array([temperature.get(name, 1.0) for name in decisions.types])
    return temper(decisions.probabilities, temperature)


def describe_temperature(temperature: Temperature) -> str:
    """Return a temperature, or the temperatures of all types, as text."""
    if isinstance(temperature, dict):
        return ", ".join(f"{name} {value:.4g}" for name, value in temperature.items())
    return f"{temperature:.4g}"


def temper_labels(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Apply `temper` to probabilities of labels that are independent of each other."""
    return probabilities if temperature == 1 else temper(as_pairs(probabilities), temperature)[..., 1]


def as_pairs(probabilities: np.ndarray) -> np.ndarray:
    """Return probabilities of yes-or-no labels as rows of two: (..., 2)."""
    return np.stack([1 - probabilities, probabilities], axis=-1)


def fit_temperature(probabilities: np.ndarray, gold: np.ndarray) -> float:
    """Find the temperature with the lowest negative log likelihood of gold labels, between 0.05 and 20.

    Args:
        probabilities: Probabilities of the labels, (rows, labels).
        gold: Label indices, (rows,).
    """
    from scipy.optimize import minimize_scalar

    # The likelihood is a concave function of 1 / temperature, so there is one minimum.
    optimum = minimize_scalar(
        lambda power: compute_gold_losses(temper(probabilities, math.exp(-power)), gold).mean(),
        bounds=(-math.log(20), math.log(20)),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return float(f"{math.exp(-optimum.x):.4g}")


def fit_temperatures(decisions: Decisions) -> Temperature:
    """Fit one temperature to all decisions, or one per type; types with fewer than 20 decisions get the overall one."""
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
    """Part of the decisions, with the temperature and thresholds fitted to all others."""

    is_held_out: np.ndarray
    """Whether a decision is in this part, (decisions,)."""
    temperature: Temperature
    thresholds: list[float]
    """Threshold of each label, if a row may have several labels."""


def fit_folds(decisions: Decisions, groups: np.ndarray, labels: int) -> list[Fold]:
    """Fit a temperature, and a threshold per label, to all other folds of the decisions, for each fold.

    Decisions with equal `groups`, (decisions,), are in one fold. Several labels per row are ordered row by row.
    """
    parts = []
    for is_held_out in split_folds(groups):
        rest = decisions.select(~is_held_out)
        temperature, is_multi = fit_temperatures(rest), decisions.per == "label"
        thresholds = tune_thresholds(temper_decisions(rest, temperature)[:, 1], rest.gold, labels) if is_multi else []
        parts.append(Fold(is_held_out, temperature, thresholds))
    return parts


def temper_folds(decisions: Decisions, fits: Sequence[Fold]) -> np.ndarray:
    """Apply to each fold of the decisions the temperature that was fitted to the others."""
    tempered = np.empty_like(decisions.probabilities)
    for fold in fits:
        tempered[fold.is_held_out] = temper_decisions(decisions.select(fold.is_held_out), fold.temperature)
    return tempered


def split_folds(groups: np.ndarray) -> list[np.ndarray]:
    """Split rows at random into folds of complete groups; return a mask per fold, (rows,)."""
    names, group_ids = np.unique(groups, return_inverse=True)
    # The groups a, b, a, c have the ids [0, 1, 0, 2]. Both rows of a are in one fold, which is drawn for the group.
    fold = np.random.default_rng(0).permutation(len(names)) % min(FOLDS, len(names))
    return [fold[group_ids] == fold_id for fold_id in range(fold.max() + 1)]


def compute_gold_losses(probabilities: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Compute the negative log likelihood of each gold label, (decisions,)."""
    likelihood = probabilities[np.arange(len(gold)), gold]
    return np.asarray(-np.log(np.maximum(likelihood, np.finfo(float).tiny)))


def tune_threshold(probabilities: np.ndarray, gold: np.ndarray) -> float:
    """Find the threshold on a label's probability with the best F1, as the middle of a gap, or 0.5 without gold rows.

    Args:
        probabilities: Probability of the label, (rows,).
        gold: Whether a row has the label, 0 or 1, (rows,).
    """
    if not gold.any():
        return 0.5
    # In the example at the top, a threshold below the 1st, 2nd, ... highest probability has [1, 1, 2, 2] hits and an F1
    # of 2 * hits / (selected + gold) = [0.67, 0.5, 0.8, 0.67]. The third is best: the middle of 0.5 and 0.25 is 0.375.
    order = np.argsort(-probabilities, kind="stable")
    sorted_values, hits = probabilities[order], np.cumsum(gold[order])
    f1 = 2 * hits / (np.arange(1, len(gold) + 1) + gold.sum())
    # No threshold separates equal probabilities.
    f1[:-1][sorted_values[:-1] == sorted_values[1:]] = -1
    best = int(f1.argmax())
    below = sorted_values[best + 1] if best + 1 < len(gold) else 0.0
    return float(f"{(sorted_values[best] + below) / 2:.6g}")


def tune_thresholds(probabilities: np.ndarray, gold: np.ndarray, labels: int) -> list[float]:
    """Tune the threshold of each label, given the decisions of all labels, row by row; see `tune_threshold`."""
    yes, is_gold = (values.reshape(-1, labels) for values in (probabilities, gold))
    return [tune_threshold(yes[:, label], is_gold[:, label]) for label in range(labels)]


class Abstention(NamedTuple):
    """A threshold on confidence, with its coverage and precision on the rows that selected it."""

    threshold: float
    coverage: float
    """Fraction of the rows that are answered."""
    precision: float
    """Fraction of the answers that are right."""


def find_abstention(confidence: np.ndarray, right: np.ndarray, precision: float) -> Abstention | None:
    """Find the threshold that answers most rows with at least this precision, wrong with probability .05 at most.

    Precision holds for new rows of the same distribution, with probability .95 over these rows. Twenty levels
    of coverage are tested, each by an exact binomial test (the lower end of Clopper and Pearson's interval) at a
    twentieth of the risk, as in Geifman and El-Yaniv 2017, section 3. Given the last row above a level, the rows
    above it are independent draws of all that are more confident, so that the test is exact for a threshold there.

    Returns:
        The threshold, or None if no threshold reaches the precision with the required probability.
    """
    from scipy.stats import binom

    ranks = {round(len(confidence) * level / LEVELS) for level in range(1, LEVELS)}
    ordered = np.sort(confidence)[::-1]
    thresholds = [0.0, *(float(np.nextafter(ordered[rank - 1], 2)) for rank in sorted(ranks, reverse=True) if rank)]
    for threshold in thresholds:  # in descending order of coverage
        is_answered = confidence >= threshold
        answered, hits = int(is_answered.sum()), int(right[is_answered].sum())
        if answered and binom.cdf(answered - hits, answered, 1 - precision) <= 0.05 / LEVELS:
            return Abstention(threshold, answered / len(confidence), hits / answered)
    return None


def risk_coverage(confidence: np.ndarray, right: np.ndarray, points: int = LEVELS) -> list[tuple[float, float, float]]:
    """Return (coverage, precision, threshold) for `points` levels of coverage, the most confident rows first."""
    order = np.argsort(-confidence, kind="stable")
    hits = np.cumsum(right[order])
    ends = sorted({max(1, round(len(order) * point / points)) for point in range(1, points + 1)})
    return [(end / len(order), float(hits[end - 1] / end), float(confidence[order][end - 1])) for end in ends]


def area_under_risk(confidence: np.ndarray, right: np.ndarray) -> float:
    """Compute the mean fraction of wrong rows over all levels of coverage, in steps of a row (Geifman et al. 2019)."""
    hits = np.cumsum(right[np.argsort(-confidence, kind="stable")])
    return float(np.mean(1 - hits / np.arange(1, len(hits) + 1)))


def find_set_threshold(gold_probabilities: np.ndarray, coverage: float) -> float:
    """Find the minimum probability of a label in a prediction set, such that sets hold the gold label often enough.

    Split conformal prediction with 1 - probability as the score (Sadinle et al. 2019): the set of a new row holds its
    gold label with probability `coverage` or more, over these rows and the new one.
    """
    rows = len(gold_probabilities)
    # In the example at the top, the gold labels have the probabilities 0.9, 0.25, 0.5 and 0.75. With 75%, the rank is
    # ceil(5 * 0.75) = 4. The new row counts as the fifth: it is as likely to have any rank among the five.
    rank = math.ceil((rows + 1) * coverage)
    return 0.0 if rank > rows else float(np.sort(gold_probabilities)[::-1][rank - 1])


def measure_prediction_sets(
    probabilities: np.ndarray, gold: np.ndarray, rows: np.ndarray, coverage: float
) -> dict[str, Any]:
    """Measure prediction sets for a coverage on rows that fitted neither the temperature nor the threshold.

    The arguments are the fields of `Decisions`, with one decision per row.

    Returns:
        ``held``, the fraction of sets that hold the gold label, with its Wilson interval, the ``mean_size`` of the
        sets, and ``single``, the fraction of sets with one label.
    """
    held, sizes = np.empty(len(gold), dtype=bool), np.empty(len(gold), dtype=int)
    for is_held_out in split_folds(rows):
        rest = ~is_held_out
        tempered = temper(probabilities, fit_temperature(probabilities[rest], gold[rest]))
        gold_values = tempered[np.arange(len(gold)), gold]
        threshold = find_set_threshold(gold_values[rest], coverage)
        # A set without any label gets the most probable one.
        threshold_of_row = np.minimum(threshold, tempered[is_held_out].max(axis=1))
        held[is_held_out] = gold_values[is_held_out] >= threshold_of_row
        # Labels that a row lacks have probability 0, which a threshold of 0 would include.
        in_set = (tempered[is_held_out] >= threshold_of_row[:, None]) & (probabilities[is_held_out] > 0)
        sizes[is_held_out] = in_set.sum(axis=1)
    interval = wilson_interval(int(held.sum()), len(held))
    return {
        "held": float(held.mean()),
        "interval": interval,
        "mean_size": float(sizes.mean()),
        "single": float((sizes == 1).mean()),
    }


def apply_options(probabilities: np.ndarray, names: Sequence[Any], option: Callable[[str], Any]) -> dict[str, Any]:
    """Return the fields that options add to a prediction: ``abstain``, and ``prediction_set``, most probable first."""
    added: dict[str, Any] = {}
    if option("abstain_below") is not None:
        added["abstain"] = bool(probabilities.max() < option("abstain_below"))
    if option("set_above") is not None:
        order = np.argsort(-probabilities, kind="stable")
        likely = [names[n] for n in order if probabilities[n] >= option("set_above")]
        added["prediction_set"] = likely or [names[order[0]]]
    return added
