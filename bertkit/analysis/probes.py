"""Linear probes of all layers, compared with baselines, a control task and one another."""

from __future__ import annotations

import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import cross_entropy, mse_loss

from bertkit.analysis.layer_vectors import LayerVectors
from bertkit.analysis.probe_tasks import Combination, Control, ProbeItems, ProbeTask
from bertkit.metrics import registry
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.progress import stage

_PENALTIES = (10_000.0, 1000.0, 100.0, 10.0, 1.0)
"""L2 penalties, the strongest first; the inverse of scikit-learn's ``C``."""

_SEED = 1  # seed of the draw of training items and of the control task
_SAMPLES = 500  # bootstrap resamples
_FIT_FRACTION = 0.9  # fraction of the training rows; the other rows select the penalty
_MAX_TUNING_ITEMS = 5000
_MAX_STEPS = 200
_MAX_MIXED_ITEMS = 2500
_MAX_MIXED_NUMBERS = 60_000_000  # in memory, for all layers
_MIXING_STEPS = 80
_MAJORITY = "most frequent label"


@dataclass(frozen=True)
class ItemVectors:
    """The vectors of items at all layers."""

    vectors: LayerVectors
    indices: np.ndarray
    """Index in `vectors` of each vector of each item, (items, vectors of an item)."""
    combination: Combination

    def features(self, layer: int, selected: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the features of items at a layer, float32 of shape (items, features)."""
        layer_vectors = self.vectors.at(layer)
        first, *rest = (layer_vectors[column] for column in self.indices[selected].T)
        if not rest:
            return np.asarray(first)
        second = rest[0]
        parts = [np.abs(first - second)] if self.combination == "difference" else [first, second]
        return np.concatenate([*parts, first * second], axis=1)


def find_vectors(items: ProbeItems, vectors: LayerVectors) -> tuple[ProbeItems, ItemVectors]:
    """Find the vectors of items; items with a word that has no vector are left out.

    A word has no vector if it has no tokens, such as a word of control characters.
    """
    addresses = zip(vectors.rows.tolist(), vectors.index.tolist(), strict=True)
    index_by_address = {address: index for index, address in enumerate(addresses)}
    flat_indices = [index_by_address.get((row, word), -1) for row, word in items.addresses.reshape(-1, 2).tolist()]
    indices = np.array(flat_indices, dtype=np.int64).reshape(items.addresses.shape[:2])
    has_vectors = np.flatnonzero((indices >= 0).all(axis=1))
    return items.select(has_vectors), ItemVectors(vectors, indices[has_vectors], items.combination)


# --- Draws: rows stay together ---


def draw_training_items(items: ProbeItems, max_items: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows, and return the indices of at most `max_items` items to fit and of items that select the penalty.

    All items of a row go to the same part, because the penalty must be selected on texts that the probe has not seen.
    """
    rng = np.random.default_rng(_SEED)
    # Items of a row are next to each other, so split the items where the row changes.
    row_ids, starts = np.unique(items.owners, return_index=True)
    row_items = np.split(np.arange(len(items)), starts[1:])
    order = rng.permutation(len(row_ids))
    count = min(max(1, round(_FIT_FRACTION * len(row_ids))), len(row_ids) - 1)
    parts = (order[:count], order[count:])
    fit_items, tuning_items = (np.concatenate([row_items[row] for row in rows]) for rows in parts)
    subset = np.sort(rng.permutation(len(fit_items))[:max_items])
    return fit_items[subset], tuning_items[:_MAX_TUNING_ITEMS]


def draw_test_items(items: ProbeItems, max_items: int) -> np.ndarray:
    """Return the indices of the test items: all, or the items of random rows, at most `max_items` in total."""
    if len(items) <= max_items:
        return np.arange(len(items))
    owners, counts = np.unique(items.owners, return_counts=True)
    order = np.random.default_rng(0).permutation(len(owners))
    rows = order[: max(1, int(np.searchsorted(np.cumsum(counts[order]), max_items, side="right")))]
    return np.flatnonzero(np.isin(items.owners, owners[rows]))


def draw_control(
    labels: np.ndarray, groups: Sequence[str], test_labels: np.ndarray, test_groups: Sequence[str], control: Control
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the control task, for training items and for test items.

    ``types`` draws one random label per group, which is a word type, with the frequencies of training labels; a probe
    can only memorize it (Hewitt and Liang 2019). Texts do not repeat, so their labels cannot be memorized. For them,
    ``shuffled`` shuffles the training labels within each group, or all labels without groups, and keeps the test
    labels: it measures the score of a probe that learned only the groups.
    """
    rng = np.random.default_rng([_SEED, 1])
    if control == "types":
        types = sorted({*groups, *test_groups})
        # A draw from the training labels has their frequencies.
        by_type = dict(zip(types, rng.choice(labels, size=len(types)).tolist(), strict=True))
        return np.array([by_type[group] for group in groups]), np.array([by_type[group] for group in test_groups])
    group_ids = np.array(groups) if len(groups) else np.zeros(len(labels), dtype=np.int64)
    shuffled_labels = labels.copy()
    for group in np.unique(group_ids):
        group_items = np.flatnonzero(group_ids == group)
        shuffled_labels[group_items] = labels[rng.permutation(group_items)]
    return shuffled_labels, test_labels


def find_majority(labels: np.ndarray, groups: Sequence[str], test_groups: Sequence[str]) -> tuple[int, np.ndarray]:
    """Return the most frequent training label overall, and the most frequent one in the group of each test item."""
    majority = int(Counter(labels.tolist()).most_common(1)[0][0])
    counts: dict[str, Counter[int]] = {}
    for label, group in zip(labels.tolist(), groups, strict=False):
        counts.setdefault(group, Counter())[label] += 1
    label_by_group = {group: group_counts.most_common(1)[0][0] for group, group_counts in counts.items()}
    return majority, np.array([label_by_group.get(group, majority) for group in test_groups], dtype=np.int64)


# --- Probes ---


def fit_probe(features: np.ndarray, targets: np.ndarray, penalty: float, *, is_regression: bool) -> Any:
    """Fit scikit-learn's logistic or ridge regression on standardized features."""
    if is_regression:
        return Ridge(alpha=penalty).fit(features, targets)
    # Logistic regression fails with a single label, which control tasks and small samples can have.
    if len(np.unique(targets)) == 1:
        return DummyClassifier().fit(features, targets)
    # Scores do not depend on the last digits of the weights, so convergence is not required.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return LogisticRegression(C=1 / penalty, solver="lbfgs", max_iter=_MAX_STEPS).fit(features, targets)


def choose_penalty(
    features: np.ndarray, targets: np.ndarray, tuning_features: np.ndarray, tuning_targets: np.ndarray, **options: bool
) -> float:
    """Return the penalty with the lowest loss on tuning items: squared error or log loss."""
    losses: dict[float, float] = {}
    for penalty in _PENALTIES:
        probe = fit_probe(features, targets, penalty, **options)
        if options["is_regression"]:
            losses[penalty] = float(np.square(probe.predict(tuning_features) - tuning_targets).mean())
        else:
            # Leave out labels that no fit item has: their probability is 0 with every penalty.
            is_known = np.isin(tuning_targets, probe.classes_)
            columns = np.searchsorted(probe.classes_, tuning_targets[is_known])
            logs = np.log(np.maximum(probe.predict_proba(tuning_features)[is_known], np.finfo(np.float64).tiny))
            losses[penalty] = -float(logs[np.arange(len(columns)), columns].sum())
        if losses[penalty] > min(losses.values()):
            break  # weaker penalties overfit even more
    return min(losses, key=lambda penalty: losses[penalty])


def find_center_of_gravity(layers: np.ndarray, targets: np.ndarray, penalty: float, *, is_regression: bool) -> float:
    """Return the mean layer index, weighted by the learned layer weights of a probe (Tenney et al. 2019, section 3).

    The probe reads a weighted sum of all layers. The layer weights are a softmax, start equal, and are learned together
    with the probe.

    Args:
        layers: Standardized features of all layers, (layers + 1, items, features).
        targets: Indices of labels, or values, (items,).
        penalty: L2 penalty of the probe.
        is_regression: Whether targets are values.
    """
    features = torch.from_numpy(layers)
    classes = 1 if is_regression else int(targets.max()) + 1
    gold = torch.from_numpy(targets - targets.mean()).float() if is_regression else torch.from_numpy(targets)
    layer_logits = torch.zeros(len(layers), requires_grad=True)
    weights = torch.zeros(layers.shape[2], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([layer_logits, weights, bias], max_iter=_MIXING_STEPS, line_search_fn="strong_wolfe")

    def compute_loss() -> torch.Tensor:
        optimizer.zero_grad()
        mixed = torch.einsum("l,lif->if", layer_logits.softmax(0), features)
        predicted = mixed @ weights + bias
        if is_regression:
            loss = mse_loss(predicted[:, 0], gold, reduction="sum") / 2
        else:
            loss = cross_entropy(predicted, gold, reduction="sum")
        total = loss + penalty / 2 * weights.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
    return float(layer_logits.softmax(0).detach() @ torch.arange(len(layers), dtype=torch.float32))


# --- Comparison of layers ---


@dataclass(frozen=True)
class LayerScore:
    """Result of the probe of a layer."""

    layer: int
    """0 is the output of the embeddings."""
    score: float
    interval: Interval
    """95% interval of the score over held-out rows."""
    control: float
    """Score of a probe of the control task with the same penalty."""
    selectivity: float
    """The score minus the score of the control task."""
    strength: float
    """L2 penalty."""
    gap: Interval
    """95% interval of the best layer's score minus this layer's, or None for the best layer."""
    is_as_good: bool
    """Whether the layer is not significantly worse than the best layer."""


@dataclass(frozen=True)
class ProbedLayers:
    """Results of the probes of all layers."""

    layers: list[LayerScore]
    best_layer: int
    baselines: dict[str, float]
    """Scores of predicting the most frequent label overall, or per group."""
    above_baseline: Interval
    """95% interval of the best layer's score minus the score of the most frequent label (for numbers, 0)."""
    labels: int
    """Number of labels of training items; 0 for numbers."""
    train_items: int
    """Number of items that a probe is trained on."""
    test_items: int
    center_of_gravity: float
    notes: list[str]

    @property
    def as_good(self) -> list[int]:
        """The best layer, and the layers that are not significantly worse."""
        return [layer.layer for layer in self.layers if layer.is_as_good]


def probe_layers(task: ProbeTask, train: ItemVectors, test: ItemVectors, *, max_items: int) -> ProbedLayers:
    """Train and score a probe per layer, and compare the layers.

    Args:
        task: Task of the probes.
        train: Vectors of the training items.
        test: Vectors of the items to score.
        max_items: Maximum items that a probe is trained on, and that it is scored on.
    """
    # 1. Draw items, and the labels of the control task.
    test_items = draw_test_items(task.test, max_items)
    task = replace(task, test=task.test.select(test_items))
    train_labels, gold = encode_labels(task)
    fit_items, tuning_items = draw_training_items(task.train, max_items)
    targets = train_labels[fit_items]
    groups = task.train.select(fit_items).groups
    control, control_gold = draw_control(targets, groups, gold, task.test.groups, task.control)
    score: Callable[[np.ndarray, np.ndarray], float] = getattr(registry, task.metric)
    options = {"is_regression": task.is_regression}

    # 2. Train and score a probe per layer, and a probe of the control task with the same penalty.
    predictions, penalties, controls = [], [], []
    layer_count = train.vectors.layers + 1
    with stage("probing layers", layer_count) as advance:
        for layer in range(layer_count):
            features = train.features(layer)
            parts = (features[fit_items], features[tuning_items], test.features(layer, test_items))
            scaled, scaled_tuning, scaled_test = map(StandardScaler().fit(parts[0]).transform, parts)
            penalty = choose_penalty(scaled, targets, scaled_tuning, train_labels[tuning_items], **options)
            penalties.append(penalty)
            predictions.append(fit_probe(scaled, targets, penalty, **options).predict(scaled_test))
            control_probe = fit_probe(scaled, control, penalty, **options)
            controls.append(float(score(control_gold, control_probe.predict(scaled_test))))
            advance(1)

    # 3. Compute the center of gravity, with fewer items, because all layers are in memory at once.
    with stage("weighing layers", total=1):
        width = train.features(0, fit_items[:1]).shape[1]
        subset = fit_items[: min(_MAX_MIXED_ITEMS, max(1, _MAX_MIXED_NUMBERS // (width * layer_count)))]
        layers = np.stack(
            [StandardScaler().fit_transform(train.features(index, subset)) for index in range(layer_count)]
        )
        penalty = statistics.median_low(penalties)
        center = find_center_of_gravity(layers, targets[: len(subset)], penalty, **options)

    # 4. Compare the layers with the baselines, unless labels are numbers, and with the best layer.
    baselines: dict[str, float] = {}
    constant = None
    if not task.is_regression:
        majority, by_group = find_majority(train_labels, task.train.groups, task.test.groups)
        constant = np.full_like(gold, majority)
        baselines[_MAJORITY] = float(score(gold, constant))
        if task.group_name:
            baselines[f"{_MAJORITY} of each {task.group_name}"] = float(score(gold, by_group))
    scores = [float(score(gold, predicted)) for predicted in predictions]
    best_layer = int(np.argmax(scores))
    intervals = _find_intervals(task, gold, predictions, constant, best_layer)
    layer_scores = []
    for layer in range(layer_count):
        gap = None if layer == best_layer else intervals[f"gap {layer}"]
        results = scores[layer], intervals[f"layer {layer}"], controls[layer], scores[layer] - controls[layer]
        layer_scores.append(LayerScore(layer, *results, penalties[layer], gap, gap is None or gap[0] <= 0))
    classes = 0 if task.is_regression else len(set(task.train.labels))
    notes = [*task.notes, *_find_notes(task, layer_scores, best_layer, baselines, intervals["above"])]
    counts = classes, len(fit_items), len(task.test)
    return ProbedLayers(layer_scores, best_layer, baselines, intervals["above"], *counts, center, notes)


def encode_labels(task: ProbeTask) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers or label ids of training items and test items, each of shape (items,).

    Labels that no training item has get ids after the ids of training labels.
    """
    train, test = task.train.labels, task.test.labels
    if task.is_regression:
        return np.array(train, dtype=np.float64), np.array(test, dtype=np.float64)
    names = [*sorted(set(train)), *sorted(set(test) - set(train))]
    label_ids = {name: index for index, name in enumerate(names)}
    return np.array([label_ids[label] for label in train]), np.array([label_ids[label] for label in test])


def _find_intervals(
    task: ProbeTask, gold: np.ndarray, predictions: Sequence[np.ndarray], constant: np.ndarray | None, best_layer: int
) -> dict[str, Interval]:
    """Compute intervals over rows, with the same resamples for all layers.

    Returns:
        ``layer N``, the interval of a layer's score; ``gap N``, the interval of the best layer's score minus the score
        of layer N; and ``above``, the interval of the best layer's score minus a constant's, or minus 0 without one.
    """
    score = getattr(registry, task.metric)
    row_ids, starts = np.unique(task.test.owners, return_index=True)
    # Resample rows with all their items: resampled words would give intervals that are too narrow, because the words of
    # a sentence are not independent.
    row_items = np.split(np.arange(len(gold)), starts[1:])

    def score_rows(rows: np.ndarray) -> dict[str, float]:
        items = np.concatenate([row_items[row] for row in rows])
        scores = [float(score(gold[items], predicted[items])) for predicted in predictions]
        return {
            **{f"layer {layer}": value for layer, value in enumerate(scores)},
            **{f"gap {layer}": scores[best_layer] - value for layer, value in enumerate(scores)},
            "above": scores[best_layer] - (0.0 if constant is None else float(score(gold[items], constant[items]))),
        }

    return bootstrap_intervals(score_rows, len(row_ids), samples=_SAMPLES)


def _find_notes(
    task: ProbeTask, layers: Sequence[LayerScore], best_layer: int, baselines: Mapping[str, float], above: Interval
) -> list[str]:
    """Return notes about limits of the scores."""
    notes = []
    known_labels = set(task.train.labels)
    new_labels = 0 if task.is_regression else sum(label not in known_labels for label in task.test.labels)
    if new_labels:
        notes.append(f"held-out items with a label that no training row has, always wrong: {new_labels:,}")
    if above is None or above[0] <= 0:
        baseline = "no correlation" if task.is_regression else "the most frequent label"
        notes.append(f"no layer is shown to be better than {baseline}: these vectors may not encode the label")
    notes += [
        f"no layer is above the {name}, which reads no text: {score:.4f}"
        for name, score in baselines.items()
        if name != _MAJORITY and layers[best_layer].score <= score
    ]
    as_good = ", ".join(str(layer.layer) for layer in layers if layer.is_as_good and layer.layer != best_layer)
    if as_good:
        notes.append(f"the best layer is not certain: {best_layer} is not significantly better than {as_good}")
    if layers[best_layer].selectivity <= 0:
        notes.append("selectivity is not above 0: the probe learns the labels of the control task as well")
    return notes
