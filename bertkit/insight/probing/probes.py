"""Probes of one layer: trained by each seed on what it draws, and scored on the same held-out items."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.insight.probing.draws import Draw, draw_control, draw_items
from bertkit.insight.probing.items import ProbeTask
from bertkit.insight.probing.linear import STRENGTHS, Scaling, code_length, fit_classifier, fit_regression, gram_of
from bertkit.metrics import Numbers, basic

# those of the paper
_SHARES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
_LEAST = 8  # items of the first part


@dataclass(frozen=True)
class DescriptionLength:
    """What labels take."""

    bits: float
    uniform_bits: float
    """What they take where nothing is known of them."""

    @property
    def compression(self) -> float:
        """How many times shorter the code is than the uniform one; 1 or less where the vectors tell nothing."""
        return self.uniform_bits / self.bits if self.bits else math.inf


def measure_code(
    features: Numbers, labels: Numbers, classes: int, strength: float, *, gram: Numbers
) -> DescriptionLength:
    """Measure the online (prequential) code of labels, in the order of the items.

    The first thousandth of them is coded uniformly. Each further part, up to the next of the paper's shares, is coded
    with a probe that has learned from all parts before it.

    Args:
        features: as `bertkit.insight.probing.linear.Scaling.apply` returns them, (items, features), in random order.
        labels: numbers of classes, (items,).
        classes: how many there are.
        strength: of the probe; chosen on other items, since it is no part of the code.
        gram: as `bertkit.insight.probing.linear.gram_of` returns it.
    """
    count = len(labels)
    ends = sorted({min(count, max(_LEAST, round(share * count))) for share in _SHARES})
    per_item = math.log2(classes)
    bits, weights = ends[0] * per_item, None
    for begin, end in itertools.pairwise(ends):
        weights = fit_classifier(features[:begin], labels[:begin], classes, strength, gram=gram, start=weights)
        bits += code_length(features[begin:end], labels[begin:end], weights)
    return DescriptionLength(bits, count * per_item)


@dataclass(frozen=True)
class EncodedTask:
    """The items of a task with numbers for labels."""

    task: ProbeTask
    names: list[str]
    """Labels of the training items; none for regression."""
    train: Numbers
    """(items,): numbers of labels, or values."""
    test: Numbers
    """(items,): the same; a label that no training item has gets a number beyond those."""

    @property
    def classes(self) -> int:
        """The number of labels of training items."""
        return len(self.names)

    @property
    def new_labels(self) -> int:
        """The number of items to score whose label no training item has."""
        return 0 if self.task.is_regression else int((self.test >= self.classes).sum())

    def score(self, gold: Numbers, predicted: Numbers) -> float:
        """Compute the metric of the task."""
        metric: Callable[[Numbers, Numbers], float] = getattr(basic, self.task.metric)
        return float(metric(gold, predicted))


@dataclass(frozen=True)
class SeedResult:
    """What the probe of one seed does at one layer."""

    predicted: Numbers
    """(items,): numbers of labels, or values, of the items to score."""
    score: float
    control: float
    """The score of a probe of the same strength that has learned the control task."""
    code: DescriptionLength | None
    """None for regression."""


@dataclass(frozen=True)
class LayerResult:
    """The probes of a layer."""

    strength: float
    """How much their weights are held back, of `bertkit.insight.probing.linear.STRENGTHS`."""
    seeds: list[SeedResult]


def encode_labels(task: ProbeTask) -> EncodedTask:
    """Number the labels of a task."""
    if task.is_regression:
        train, test = (np.array(items.labels, dtype=np.float64) for items in (task.train, task.test))
        return EncodedTask(task, [], train, test)
    names = sorted(set(task.train.labels))
    every = [*names, *sorted(set(task.test.labels) - set(names))]
    numbers = {name: number for number, name in enumerate(every)}
    train, test = (np.array([numbers[label] for label in items.labels]) for items in (task.train, task.test))
    return EncodedTask(task, names, train, test)


def probe_layer(
    encoded: EncodedTask, features: Numbers, test_features: Numbers, *, seeds: Sequence[int], most: int
) -> LayerResult:
    """Train and score a probe per seed; the first one chooses the strength of all.

    Args:
        encoded: the items.
        features: of all training items at this layer, (items, features).
        test_features: of those to score.
        seeds: each draws training items and the labels of the control task.
        most: training items of a seed.
    """
    strength, results = None, []
    for seed in seeds:
        draw = draw_items(encoded.task.train, most, seed)
        scaling = Scaling.of(features[draw.fitting])
        fitting, test = scaling.apply(features[draw.fitting]), scaling.apply(test_features)
        if strength is None:
            strength = _choose_strength(encoded, draw, fitting, scaling.apply(features[draw.tuning]))
        results.append(_probe_seed(encoded, draw, fitting, test, strength, seed))
    assert strength is not None  # there is at least one seed
    return LayerResult(strength, results)


def _choose_strength(encoded: EncodedTask, draw: Draw, fitting: Numbers, tuning: Numbers) -> float:
    """Return the strength with which other items are predicted best: the fewest bits, or the least squared error."""
    targets, held_out = encoded.train[draw.fitting], encoded.train[draw.tuning]
    gram = gram_of(fitting)
    losses: dict[float, float] = {}
    weights = None
    for strength in STRENGTHS:
        if encoded.task.is_regression:
            weights, mean = fit_regression(fitting, targets - targets.mean(), strength), float(targets.mean())
            losses[strength] = float(np.square((tuning @ weights)[:, 0] + mean - held_out).mean())
        else:
            weights = fit_classifier(fitting, targets, encoded.classes, strength, gram=gram, start=weights)
            losses[strength] = code_length(tuning, held_out, weights)
        if losses[strength] > min(losses.values()):
            break  # still weaker ones overfit more
    return min(losses, key=lambda strength: losses[strength])


def _probe_seed(
    encoded: EncodedTask, draw: Draw, fitting: Numbers, test: Numbers, strength: float, seed: int
) -> SeedResult:
    """Train a probe of the task and one of its control task, and score both."""
    task, targets, code = encoded.task, encoded.train[draw.fitting], None
    groups = [task.train.groups[number] for number in draw.fitting.tolist()] if len(task.train.groups) else []
    control, control_gold = draw_control(targets, groups, encoded.test, task.test.groups, task.control, seed)
    if task.is_regression:
        mean = targets.mean()
        fits = [fit_regression(fitting, some - mean, strength) for some in (targets, control)]
        predicted, of_control = ((test @ weights)[:, 0].astype(np.float64) + mean for weights in fits)
    else:
        classes, gram = encoded.classes, gram_of(fitting)
        fits = [fit_classifier(fitting, some, classes, strength, gram=gram) for some in (targets, control)]
        predicted, of_control = ((test @ weights).argmax(axis=1) for weights in fits)
        code = measure_code(fitting, targets, classes, strength, gram=gram)
    score, control_score = encoded.score(encoded.test, predicted), encoded.score(control_gold, of_control)
    return SeedResult(predicted, score, control_score, code)
