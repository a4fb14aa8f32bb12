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

_STRENGTHS = (10_000.0, 1000.0, 100.0, 10.0, 1.0)
"""L2 penalties, from the strongest; the inverse of scikit-learn's ``C``."""

_SEED = 1  # seed of the draw of training items and of the control task
_SAMPLES = 500  # bootstrap resamples
_FITTING_SHARE = 0.9  # fraction of the training rows; the others choose the penalty
_MAX_TUNING_ITEMS = 5000
_MAX_STEPS = 200
_MAX_MIXED_ITEMS = 2500
_MAX_MIXED_NUMBERS = 60_000_000  # all layers together, in memory at the same time
_MIXING_STEPS = 80
_MAJORITY = "most frequent label"


@dataclass(frozen=True)
class ItemVectors:
    """The vectors of items at all layers."""

    vectors: LayerVectors
    indices: np.ndarray
    """Index in `vectors` of each vector of an item, (items, vectors)."""
    combination: Combination

    def features(self, layer: int, selected: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the features of items at a layer, float32 of shape (items, features)."""
        layer_vectors = self.vectors.at(layer)
        first, *rest = (layer_vectors[column] for column in self.indices[selected].T)
        if not rest:
            return np.asarray(first)
        # The features of `Combination`: the order of u and v is lost in |u - v|, and kept in (u, v).
        second = rest[0]
        parts = [np.abs(first - second)] if self.combination == "difference" else [first, second]
        return np.concatenate([*parts, first * second], axis=1)


def find_vectors(items: ProbeItems, vectors: LayerVectors) -> tuple[ProbeItems, ItemVectors]:
    """Find the vectors of items; items with a word that has none are left out.

    A word has no vector if it has no tokens, such as one of control characters.
    """
    places = zip(vectors.rows.tolist(), vectors.index.tolist(), strict=True)
    index_by_place = {place: index for index, place in enumerate(places)}
    flat = [index_by_place.get((row, word), -1) for row, word in items.addresses.reshape(-1, 2).tolist()]
    indices = np.array(flat, dtype=np.int64).reshape(items.addresses.shape[:2])
    has_vectors = np.flatnonzero((indices >= 0).all(axis=1))
    return items.select(has_vectors), ItemVectors(vectors, indices[has_vectors], items.combination)


# --- Draws: rows stay together ---


def draw_training_items(items: ProbeItems, max_items: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows to learn from, and return at most `max_items` of their items, and the items of the other rows."""
    rng = np.random.default_rng(_SEED)
    # Items of a row are next to each other, so a row's items are a slice. All items of a row go to the same part:
    # otherwise, the penalty would be chosen on sentences that the probe has learned.
    owners, first = np.unique(items.owners, return_index=True)
    row_items = np.split(np.arange(len(items)), first[1:])
    order = rng.permutation(len(owners))
    count = min(max(1, round(_FITTING_SHARE * len(owners))), len(owners) - 1)
    fitting, tuning = (np.concatenate([row_items[row] for row in rows]) for rows in (order[:count], order[count:]))
    subset = np.sort(rng.permutation(len(fitting))[:max_items])
    return fitting[subset], tuning[:_MAX_TUNING_ITEMS]


def draw_test_items(items: ProbeItems, max_items: int) -> np.ndarray:
    """Return the items to score: all, or the items of as many random rows as have at most `max_items` together."""
    if len(items) <= max_items:
        return np.arange(len(items))
    owners, counts = np.unique(items.owners, return_counts=True)
    order = np.random.default_rng(0).permutation(len(owners))
    rows = order[: max(1, int(np.searchsorted(np.cumsum(counts[order]), max_items, side="right")))]
    return np.flatnonzero(np.isin(items.owners, owners[rows]))


def draw_control(
    labels: np.ndarray, groups: Sequence[str], scored: np.ndarray, scored_groups: Sequence[str], control: Control
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of the control task, for training items and for the items to score.

    ``types`` gives each group, a word type, one label at random, with the probabilities that labels have in training; a
    probe can only memorize it (Hewitt and Liang 2019). A text is seen once, so there is nothing to memorize.
    ``shuffled`` therefore shuffles the training labels within each group, or all of them without groups, and keeps the
    labels to score: the score belongs to a probe that learned only the groups.
    """
    rng = np.random.default_rng([_SEED, 1])
    if control == "types":
        types = sorted({*groups, *scored_groups})
        # Drawing from the labels themselves draws each with its frequency.
        by_type = dict(zip(types, rng.choice(labels, size=len(types)).tolist(), strict=True))
        return np.array([by_type[group] for group in groups]), np.array([by_type[group] for group in scored_groups])
    members = np.array(groups) if len(groups) else np.zeros(len(labels), dtype=np.int64)
    shuffled = labels.copy()
    for group in np.unique(members):
        group_items = np.flatnonzero(members == group)
        shuffled[group_items] = labels[rng.permutation(group_items)]
    return shuffled, scored


def most_frequent(labels: np.ndarray, groups: Sequence[str], test_groups: Sequence[str]) -> tuple[int, np.ndarray]:
    """Return the most frequent training label, and for each item to score the most frequent label of its group."""
    majority = int(Counter(labels.tolist()).most_common(1)[0][0])
    counts: dict[str, Counter[int]] = {}
    for label, group in zip(labels.tolist(), groups, strict=False):
        counts.setdefault(group, Counter())[label] += 1
    best = {group: group_counts.most_common(1)[0][0] for group, group_counts in counts.items()}
    return majority, np.array([best.get(group, majority) for group in test_groups], dtype=np.int64)


# --- Probes ---


def fit_probe(features: np.ndarray, targets: np.ndarray, strength: float, *, is_regression: bool) -> Any:
    """Fit logistic or ridge regression of scikit-learn on standardized features."""
    if is_regression:
        return Ridge(alpha=strength).fit(features, targets)
    # Control tasks and small samples can have one label, with which logistic regression fails.
    if len(np.unique(targets)) == 1:
        return DummyClassifier().fit(features, targets)
    # If the last digits of the weights have not converged, the scores do not change.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return LogisticRegression(C=1 / strength, solver="lbfgs", max_iter=_MAX_STEPS).fit(features, targets)


def choose_strength(
    fitting: np.ndarray, targets: np.ndarray, tuning: np.ndarray, held_out: np.ndarray, **options: bool
) -> float:
    """Return the penalty with which other items are predicted best: by squared error, or by the log loss."""
    losses: dict[float, float] = {}
    for strength in _STRENGTHS:
        probe = fit_probe(fitting, targets, strength, **options)
        if options["is_regression"]:
            losses[strength] = float(np.square(probe.predict(tuning) - held_out).mean())
        else:
            # Labels that the fitted rows lack would have probability 0 with every penalty, so they are left out.
            is_known = np.isin(held_out, probe.classes_)
            columns = np.searchsorted(probe.classes_, held_out[is_known])
            logs = np.log(np.maximum(probe.predict_proba(tuning)[is_known], np.finfo(np.float64).tiny))
            losses[strength] = -float(logs[np.arange(len(columns)), columns].sum())
        if losses[strength] > min(losses.values()):
            break  # weaker penalties overfit more
    return min(losses, key=lambda strength: losses[strength])


def find_center_of_gravity(layers: np.ndarray, targets: np.ndarray, strength: float, *, is_regression: bool) -> float:
    """Return the mean layer, weighted by the shares of a probe that mixes all layers (Tenney et al. 2019, section 3).

    A softmax weight per layer is learned together with the probe over the weighted sum, from equal weights.

    Args:
        layers: Standardized features of all layers, (layers + 1, items, features), so that their scale has no effect.
        targets: Indices of labels, or values, (items,).
        strength: L2 penalty of the probe.
        is_regression: Whether targets are values.
    """
    features = torch.from_numpy(layers)
    classes = 1 if is_regression else int(targets.max()) + 1
    gold = torch.from_numpy(targets - targets.mean()).float() if is_regression else torch.from_numpy(targets)
    scalars = torch.zeros(len(layers), requires_grad=True)
    weights = torch.zeros(layers.shape[2], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([scalars, weights, bias], max_iter=_MIXING_STEPS, line_search_fn="strong_wolfe")

    def compute_loss() -> torch.Tensor:
        optimizer.zero_grad()
        mixed = torch.einsum("l,lif->if", scalars.softmax(0), features)
        predicted = mixed @ weights + bias
        if is_regression:
            loss = mse_loss(predicted[:, 0], gold, reduction="sum") / 2
        else:
            loss = cross_entropy(predicted, gold, reduction="sum")
        total = loss + strength / 2 * weights.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
    return float(scalars.softmax(0).detach() @ torch.arange(len(layers), dtype=torch.float32))


# --- Comparison of layers ---


@dataclass(frozen=True)
class LayerScore:
    """Result of the probe of a layer."""

    layer: int
    """0 is the output of the embeddings."""
    score: float
    interval: Interval
    """95%, over held-out rows."""
    control: float
    """Score of a probe with the same penalty that learned the control task."""
    selectivity: float
    """The score minus the score of the control task."""
    strength: float
    """L2 penalty."""
    gap: Interval
    """95% interval of the best layer's lead, on the same rows, or None for the best layer itself."""
    is_as_good: bool
    """Whether the layer is not shown to be worse than the best."""


@dataclass(frozen=True)
class ProbedLayers:
    """Results of the probes of all layers."""

    layers: list[LayerScore]
    best_layer: int
    baselines: dict[str, float]
    """Scores of predicting the most frequent label, of all items or of each word."""
    above_baseline: Interval
    """95% interval of the best layer's lead over the most frequent label; for numbers, over 0."""
    labels: int
    """Number of labels of training items; 0 for numbers."""
    train_items: int
    """Number of items that a probe learns from."""
    test_items: int
    center_of_gravity: float
    notes: list[str]

    @property
    def as_good(self) -> list[int]:
        """The best layer, and the layers that are not shown to be worse."""
        return [layer.layer for layer in self.layers if layer.is_as_good]


def probe_layers(task: ProbeTask, train: ItemVectors, test: ItemVectors, *, max_items: int) -> ProbedLayers:
    """Train and score a probe per layer, and compare the layers.

    Args:
        task: Task of the probes.
        train: Vectors of the training items.
        test: Vectors of the items to score.
        max_items: Maximum items that a probe is trained on, and that it is scored on.
    """
    # 1. Draw the items and the labels of the control task.
    scored = draw_test_items(task.test, max_items)
    task = replace(task, test=task.test.select(scored))
    train_labels, gold = encode_labels(task)
    fitting, tuning = draw_training_items(task.train, max_items)
    targets = train_labels[fitting]
    groups = task.train.select(fitting).groups
    control, control_gold = draw_control(targets, groups, gold, task.test.groups, task.control)
    score: Callable[[np.ndarray, np.ndarray], float] = getattr(registry, task.metric)
    options = {"is_regression": task.is_regression}

    # 2. Train and score a probe per layer, and a probe of the control task with the same penalty.
    predictions, strengths, controls = [], [], []
    layer_count = train.vectors.layers + 1
    with stage("probing layers", layer_count) as advance:
        for layer in range(layer_count):
            features, test_features = train.features(layer), test.features(layer, scored)
            scaler = StandardScaler().fit(features[fitting])
            fitted, held_out, to_score = map(scaler.transform, (features[fitting], features[tuning], test_features))
            strengths.append(choose_strength(fitted, targets, held_out, train_labels[tuning], **options))
            predictions.append(fit_probe(fitted, targets, strengths[-1], **options).predict(to_score))
            control_probe = fit_probe(fitted, control, strengths[-1], **options)
            controls.append(float(score(control_gold, control_probe.predict(to_score))))
            advance(1)

    # 3. Weigh the layers. All of them are in memory at once, so there are fewer items.
    with stage("weighing layers", total=1):
        width = train.features(0, fitting[:1]).shape[1]
        mixed = fitting[: min(_MAX_MIXED_ITEMS, max(1, _MAX_MIXED_NUMBERS // (width * layer_count)))]
        layers = np.stack(
            [StandardScaler().fit_transform(train.features(index, mixed)) for index in range(layer_count)]
        )
        strength = statistics.median_low(strengths)
        center = find_center_of_gravity(layers, targets[: len(mixed)], strength, **options)

    # 4. Compare the layers with the baselines and with the best layer. A constant has no correlation.
    baselines: dict[str, float] = {}
    constant = None
    if not task.is_regression:
        majority, by_group = most_frequent(train_labels, task.train.groups, task.test.groups)
        constant = np.full_like(gold, majority)
        baselines[_MAJORITY] = float(score(gold, constant))
        if task.group_name:
            baselines[f"{_MAJORITY} of each {task.group_name}"] = float(score(gold, by_group))
    scores = [float(score(gold, predicted)) for predicted in predictions]
    best = int(np.argmax(scores))
    intervals = _find_intervals(task, gold, predictions, constant, best)
    layer_scores = []
    for layer in range(layer_count):
        gap = None if layer == best else intervals[f"gap {layer}"]
        results = scores[layer], intervals[f"layer {layer}"], controls[layer], scores[layer] - controls[layer]
        layer_scores.append(LayerScore(layer, *results, strengths[layer], gap, gap is None or gap[0] <= 0))
    classes = 0 if task.is_regression else len(set(task.train.labels))
    notes = [*task.notes, *_find_notes(task, layer_scores, best, baselines, intervals["above"])]
    counts = classes, len(fitting), len(task.test)
    return ProbedLayers(layer_scores, best, baselines, intervals["above"], *counts, center, notes)


def encode_labels(task: ProbeTask) -> tuple[np.ndarray, np.ndarray]:
    """Return the values or the label ids of the items of both splits, (items,).

    A label that no training item has gets an id after the ids of training labels.
    """
    train, test = task.train.labels, task.test.labels
    if task.is_regression:
        return np.array(train, dtype=np.float64), np.array(test, dtype=np.float64)
    names = [*sorted(set(train)), *sorted(set(test) - set(train))]
    label_ids = {name: index for index, name in enumerate(names)}
    return np.array([label_ids[label] for label in train]), np.array([label_ids[label] for label in test])


def _find_intervals(
    task: ProbeTask, gold: np.ndarray, predictions: Sequence[np.ndarray], constant: np.ndarray | None, best: int
) -> dict[str, Interval]:
    """Return intervals over rows, which are resampled alike for all layers, so that layers are compared fairly.

    Returns:
        Intervals of ``layer N``, its score; ``gap N``, the lead of the best layer; and ``above``, the lead of the best
        layer over a constant prediction, or over 0 if there is no constant.
    """
    score = getattr(registry, task.metric)
    owners, first = np.unique(task.test.owners, return_index=True)
    # Resample rows with all their items. The words of a sentence are not independent, so resampled words would give
    # intervals that are too narrow.
    members = np.split(np.arange(len(gold)), first[1:])

    def score_rows(rows: np.ndarray) -> dict[str, float]:
        items = np.concatenate([members[row] for row in rows])
        scores = [float(score(gold[items], predicted[items])) for predicted in predictions]
        return {
            **{f"layer {layer}": value for layer, value in enumerate(scores)},
            **{f"gap {layer}": scores[best] - value for layer, value in enumerate(scores)},
            "above": scores[best] - (0.0 if constant is None else float(score(gold[items], constant[items]))),
        }

    return bootstrap_intervals(score_rows, len(owners), samples=_SAMPLES)


def _find_notes(
    task: ProbeTask, layers: Sequence[LayerScore], best: int, baselines: Mapping[str, float], above: Interval
) -> list[str]:
    """Return notes about what the scores do not show."""
    notes = []
    known_labels = set(task.train.labels)
    new_labels = 0 if task.is_regression else sum(label not in known_labels for label in task.test.labels)
    if new_labels:
        notes.append(f"held-out items whose label no training row has, never right: {new_labels:,}")
    if above is None or above[0] <= 0:
        baseline = "no correlation" if task.is_regression else "the most frequent label"
        notes.append(f"no layer is shown to be better than {baseline}: these vectors may not encode the label")
    notes += [
        f"no layer is above the {name}, which reads no text: {score:.4f}"
        for name, score in baselines.items()
        if name != _MAJORITY and layers[best].score <= score
    ]
    as_good = [str(layer.layer) for layer in layers if layer.is_as_good and layer.layer != best]
    if as_good:
        notes.append(f"the best layer is not certain: {best} is not significantly better than {', '.join(as_good)}")
    if layers[best].selectivity <= 0:
        notes.append("selectivity is not above 0: the probe learns the labels of the control task as well")
    return notes
