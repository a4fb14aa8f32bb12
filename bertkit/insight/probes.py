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

from bertkit.insight.layer_vectors import LayerVectors
from bertkit.insight.probe_tasks import Combination, Control, ProbeItems, ProbeTask
from bertkit.metrics import Numbers, registry
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.progress import stage

_STRENGTHS = (10_000.0, 1000.0, 100.0, 10.0, 1.0)
"""L2 penalties, from the strongest; the inverse of scikit-learn's ``C``."""

_SEED = 1  # for the training items and the control task
_SAMPLES = 500  # bootstrap resamples
_FITTING_SHARE = 0.9  # share of training rows to fit; the others choose the penalty
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
    numbers: Numbers
    """(items, vectors): index of each in `vectors`."""
    combination: Combination

    def features(self, layer: int, chosen: Numbers | None = None) -> Numbers:
        """Return the features of items at a layer, float32 of shape (items, features)."""
        numbers = self.numbers if chosen is None else self.numbers[chosen]
        every = self.vectors.at(layer)
        first = every[numbers[:, 0]]
        if self.combination == "alone":
            return first
        second = every[numbers[:, 1]]
        product = first * second
        parts = [np.abs(first - second)] if self.combination == "difference" else [first, second]
        return np.concatenate([*parts, product], axis=1)


def find_vectors(items: ProbeItems, vectors: LayerVectors) -> tuple[ProbeItems, ItemVectors]:
    """Find the vectors of items; items with a word that has none are left out.

    A word has no vector if it has no tokens, such as one of control characters.
    """
    # Rows and words of a row are in ascending order, so their numbers can be looked up by bisection.
    width = int(max(vectors.index.max(initial=0), items.addresses[..., 1].max(initial=0))) + 1
    keys = np.asarray(vectors.rows) * width + np.asarray(vectors.index)
    addresses = items.addresses[..., 0] * width + items.addresses[..., 1]
    numbers = np.minimum(np.searchsorted(keys, addresses), len(keys) - 1)
    has_vectors = (keys[numbers] == addresses).all(axis=1)
    kept = np.flatnonzero(has_vectors)
    return items.select(kept), ItemVectors(vectors, numbers[kept], items.combination)


# --- Draws: rows stay together ---


def draw_training_items(items: ProbeItems, max_items: int) -> tuple[Numbers, Numbers]:
    """Draw rows to learn from, and return at most `max_items` of their items, and the items of the other rows."""
    rng = np.random.default_rng(_SEED)
    owners, first = np.unique(items.owners, return_index=True)
    ends = np.append(first[1:], len(items))
    order = rng.permutation(len(owners))
    count = min(max(1, round(_FITTING_SHARE * len(owners))), len(owners) - 1)
    fitting, tuning = (
        np.concatenate([np.arange(first[row], ends[row]) for row in rows]) for rows in (order[:count], order[count:])
    )
    kept = np.sort(rng.permutation(len(fitting))[:max_items])
    return fitting[kept], tuning[:_MAX_TUNING_ITEMS]


def draw_test_items(items: ProbeItems, max_items: int) -> Numbers:
    """Return the items to score: all, or the items of as many random rows as have at most `max_items` together."""
    if len(items) <= max_items:
        return np.arange(len(items))
    owners, counts = np.unique(items.owners, return_counts=True)
    order = np.random.default_rng(0).permutation(len(owners))
    chosen = order[: max(1, int(np.searchsorted(np.cumsum(counts[order]), max_items, side="right")))]
    return np.flatnonzero(np.isin(items.owners, owners[chosen]))


def draw_control(
    labels: Numbers, groups: Sequence[str], scored: Numbers, scored_groups: Sequence[str], control: Control
) -> tuple[Numbers, Numbers]:
    """Return the labels of the control task, for training items and for those to score.

    ``types`` gives each group, a word type, one label at random, with the probabilities that labels have in training; a
    probe can only memorize it (Hewitt and Liang 2019). A text is seen once, so there is nothing to memorize.
    ``shuffled`` therefore shuffles the training labels within each group, or all of them without groups, and keeps the
    labels to score: the score belongs to a probe that has learned the groups, and nothing else.
    """
    rng = np.random.default_rng([_SEED, 1])
    if control == "types":
        types = sorted({*groups, *scored_groups})
        drawn = dict(zip(types, rng.choice(labels, size=len(types)).tolist(), strict=True))
        return np.array([drawn[group] for group in groups]), np.array([drawn[group] for group in scored_groups])
    members = np.array(groups) if len(groups) else np.zeros(len(labels), dtype=np.int64)
    shuffled = labels.copy()
    for group in np.unique(members):
        own = np.flatnonzero(members == group)
        shuffled[own] = labels[rng.permutation(own)]
    return shuffled, scored


def most_frequent(labels: Numbers, groups: Sequence[str], test_groups: Sequence[str]) -> tuple[int, Numbers]:
    """Return the most frequent training label, and for each item to score the most frequent label of its group."""
    majority = int(Counter(labels.tolist()).most_common(1)[0][0])
    counts: dict[str, Counter[int]] = {}
    for label, group in zip(labels.tolist(), groups, strict=False):
        counts.setdefault(group, Counter())[label] += 1
    best = {group: group_counts.most_common(1)[0][0] for group, group_counts in counts.items()}
    return majority, np.array([best.get(group, majority) for group in test_groups], dtype=np.int64)


# --- Probes ---


def fit_probe(features: Numbers, targets: Numbers, strength: float, *, is_regression: bool) -> Any:
    """Fit logistic or ridge regression of scikit-learn on standardized features."""
    if is_regression:
        return Ridge(alpha=strength).fit(features, targets)
    if len(np.unique(targets)) == 1:
        return DummyClassifier().fit(features, targets)
    # The last digits of weights may not have settled, which changes no score.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return LogisticRegression(C=1 / strength, solver="lbfgs", max_iter=_MAX_STEPS).fit(features, targets)


def choose_strength(fitting: Numbers, targets: Numbers, tuning: Numbers, held_out: Numbers, **options: bool) -> float:
    """Return the penalty with which other items are predicted best: by squared error, or by the log loss."""
    losses: dict[float, float] = {}
    for strength in _STRENGTHS:
        probe = fit_probe(fitting, targets, strength, **options)
        if options["is_regression"]:
            losses[strength] = float(np.square(probe.predict(tuning) - held_out).mean())
        else:
            is_known = np.isin(held_out, probe.classes_)
            columns = np.searchsorted(probe.classes_, held_out[is_known])
            logs = np.log(np.maximum(probe.predict_proba(tuning)[is_known], np.finfo(np.float64).tiny))
            losses[strength] = -float(logs[np.arange(len(columns)), columns].sum())
        if losses[strength] > min(losses.values()):
            break  # weaker penalties overfit more
    return min(losses, key=lambda strength: losses[strength])


def find_center_of_gravity(layers: Numbers, targets: Numbers, strength: float, *, is_regression: bool) -> float:
    """Return the mean layer, weighted by the shares of a probe that mixes all layers (Tenney et al. 2019, section 3).

    A softmax weight per layer is learned together with the probe over the weighted sum, from equal weights.

    Args:
        layers: Standardized features of all layers, (layers + 1, items, features), so that their scale has no effect.
        targets: Indexes of labels, or values, (items,).
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


@dataclass(frozen=True)
class EncodedTask:
    """The items of a task with numbers for labels."""

    task: ProbeTask
    classes: int
    """Number of labels of training items; 0 for regression."""
    train: Numbers
    """(items,): indexes of labels, or values."""
    test: Numbers
    """(items,): the same; a label that no training item has gets an index beyond those."""

    def score(self, gold: Numbers, predicted: Numbers) -> float:
        """Compute the metric of the task."""
        metric: Callable[[Numbers, Numbers], float] = getattr(registry, self.task.metric)
        return float(metric(gold, predicted))


def encode_labels(task: ProbeTask) -> EncodedTask:
    """Number the labels of a task."""
    if task.is_regression:
        train, test = (np.array(items.labels, dtype=np.float64) for items in (task.train, task.test))
        return EncodedTask(task, 0, train, test)
    names = sorted(set(task.train.labels))
    every = [*names, *sorted(set(task.test.labels) - set(names))]
    numbers = {name: number for number, name in enumerate(every)}
    train, test = (np.array([numbers[label] for label in items.labels]) for items in (task.train, task.test))
    return EncodedTask(task, len(names), train, test)


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
    """Score of a probe with the same penalty that has learned the control task."""
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
    chosen = draw_test_items(task.test, max_items)
    task = replace(task, test=task.test.select(chosen))
    encoded = encode_labels(task)
    fitting, tuning = draw_training_items(task.train, max_items)
    targets = encoded.train[fitting]
    groups = task.train.select(fitting).groups
    control, control_gold = draw_control(targets, groups, encoded.test, task.test.groups, task.control)
    options = {"is_regression": task.is_regression}
    predictions, strengths, controls = [], [], []
    with stage("probing layers", train.vectors.layers + 1) as tick:
        for layer in range(train.vectors.layers + 1):
            features, test_features = train.features(layer), test.features(layer, chosen)
            scaler = StandardScaler().fit(features[fitting])
            learned, held_out, scored = (
                scaler.transform(x) for x in (features[fitting], features[tuning], test_features)
            )
            strengths.append(choose_strength(learned, targets, held_out, encoded.train[tuning], **options))
            predictions.append(fit_probe(learned, targets, strengths[-1], **options).predict(scored))
            control_probe = fit_probe(learned, control, strengths[-1], **options)
            controls.append(encoded.score(control_gold, control_probe.predict(scored)))
            tick(1)
    with stage("weighing layers", total=1):
        layers = _read_all_layers(train, fitting)
        strength = statistics.median_low(strengths)
        center = find_center_of_gravity(layers, targets[: layers.shape[1]], strength, **options)
    baselines = _score_baselines(encoded)
    scores = [encoded.score(encoded.test, predicted) for predicted in predictions]
    best = int(np.argmax(scores))
    intervals = _resample(encoded, predictions, best)
    gaps = [None if layer == best else intervals[f"gap {layer}"] for layer in range(len(scores))]
    layer_scores = [
        LayerScore(
            layer=layer,
            score=score,
            interval=intervals[f"layer {layer}"],
            control=controls[layer],
            selectivity=score - controls[layer],
            strength=strengths[layer],
            gap=gap,
            is_as_good=gap is None or gap[0] <= 0,
        )
        for layer, (score, gap) in enumerate(zip(scores, gaps, strict=True))
    ]
    above = intervals["above"]
    return ProbedLayers(
        layers=layer_scores,
        best_layer=best,
        baselines=baselines,
        above_baseline=above,
        labels=encoded.classes,
        train_items=len(fitting),
        test_items=len(task.test),
        center_of_gravity=center,
        notes=[*task.notes, *_find_notes(encoded, layer_scores, baselines, best, above)],
    )


def _read_all_layers(vectors: ItemVectors, chosen: Numbers) -> Numbers:
    """Return the standardized features of some items at all layers, float32 of (layers + 1, items, features)."""
    count = vectors.vectors.layers + 1
    width = vectors.features(0, chosen[:1]).shape[1]
    some = chosen[: min(_MAX_MIXED_ITEMS, max(1, _MAX_MIXED_NUMBERS // (width * count)))]
    return np.stack([StandardScaler().fit_transform(vectors.features(layer, some)) for layer in range(count)])


def _score_baselines(encoded: EncodedTask) -> dict[str, float]:
    """Score predictions that read no text."""
    if encoded.task.is_regression:  # a constant has no correlation
        return {}
    train, test = encoded.task.train, encoded.task.test
    majority, by_group = most_frequent(encoded.train, train.groups, test.groups)
    baselines = {_MAJORITY: encoded.score(encoded.test, np.full_like(encoded.test, majority))}
    if encoded.task.group_name:
        baselines[f"{_MAJORITY} of each {encoded.task.group_name}"] = encoded.score(encoded.test, by_group)
    return baselines


def _resample(encoded: EncodedTask, predictions: Sequence[Numbers], best: int) -> dict[str, Interval]:
    """Return intervals over rows, which are resampled alike for all layers, so that layers are compared fairly.

    Returns:
        Intervals of ``layer N``, its score; ``gap N``, the lead of the best layer; and ``above``, the lead of the best
        layer over the most frequent label.
    """
    owners, first = np.unique(encoded.task.test.owners, return_index=True)
    members = np.split(np.arange(len(encoded.test)), first[1:])
    majority = None if encoded.task.is_regression else most_frequent(encoded.train, (), ())[0]

    def score(rows: Numbers) -> dict[str, float]:
        items = np.concatenate([members[row] for row in rows])
        gold = encoded.test[items]
        scores = [encoded.score(gold, predicted[items]) for predicted in predictions]
        constant = 0.0 if majority is None else encoded.score(gold, np.full_like(gold, majority))
        return {
            **{f"layer {layer}": value for layer, value in enumerate(scores)},
            **{f"gap {layer}": scores[best] - value for layer, value in enumerate(scores)},
            "above": scores[best] - constant,
        }

    return bootstrap_intervals(score, len(owners), samples=_SAMPLES)


def _find_notes(
    encoded: EncodedTask, layers: Sequence[LayerScore], baselines: Mapping[str, float], best: int, above: Interval
) -> list[str]:
    """Return what the scores do not show."""
    notes = []
    new_labels = 0 if encoded.task.is_regression else int((encoded.test >= encoded.classes).sum())
    if new_labels:
        notes.append(f"held-out items whose label no training row has, never right: {new_labels:,}")
    if above is None or above[0] <= 0:
        baseline = "no correlation" if encoded.task.is_regression else "the most frequent label"
        notes.append(f"no layer is shown to be better than {baseline}: these vectors may not tell the label at all")
    notes += [
        f"no layer is above the {name}, which reads no text: {score:.4f}"
        for name, score in baselines.items()
        if name != _MAJORITY and layers[best].score <= score
    ]
    as_good = [layer.layer for layer in layers if layer.is_as_good and layer.layer != best]
    if as_good:
        names = ", ".join(map(str, as_good))
        notes.append(f"the best layer is not shown: {best} is not better than {names} beyond chance")
    if layers[best].selectivity <= 0:
        notes.append("selectivity is not above 0: the probe learns the labels of the control task as well")
    return notes
