"""Probes of all layers, compared: with baselines and control tasks, and the layers with one another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from bertkit.insight.probing.draws import draw_items, draw_test_items, most_frequent
from bertkit.insight.probing.items import ItemVectors, ProbeTask
from bertkit.insight.probing.linear import Scaling
from bertkit.insight.probing.probes import EncodedTask, LayerResult, encode_labels, probe_layer
from bertkit.metrics import Numbers
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.metrics.probabilities import softmax
from bertkit.metrics.seeds import mean_interval, resample_mean
from bertkit.progress import stage

_MOST_ITEMS = 2500
_MOST_NUMBERS = 60_000_000  # of all layers together, in memory at the same time
_STEPS = 80


def read_all_layers(vectors: ItemVectors, chosen: Numbers) -> Numbers:
    """Return the standardized features of some items at all layers, (layers + 1, items, features), with a last 1."""
    width = vectors.features(0, chosen[:1]).shape[1] + 1
    count = vectors.vectors.layers + 1
    some = chosen[: min(_MOST_ITEMS, max(1, _MOST_NUMBERS // (width * count)))]
    layers = np.empty((count, len(some), width), dtype=np.float32)
    for layer in range(count):
        features = vectors.features(layer, some)
        layers[layer] = Scaling.of(features).apply(features)
    return layers


def mix_layers(layers: Numbers, targets: Numbers, strength: float, classes: int | None = None) -> Numbers:
    """Learn a softmax weight per layer together with the probe over the weighted sum, by L-BFGS from equal weights.

    Args:
        layers: as `read_all_layers` returns them; each is standardized, so that no layer weighs more for its scale.
        targets: numbers of classes, or values of mean 0 for regression, (items,).
        strength: how much the weights of the probe are held back.
        classes: how many there are; None for regression.

    Returns:
        the weights of layers, (layers + 1,), which sum to 1.
    """
    count, items, width = layers.shape
    outputs = classes or 1
    flat_layers = layers.reshape(count, -1)
    rows = np.arange(items)

    def loss(flat: Numbers) -> tuple[float, Numbers]:
        shares = softmax(flat[:count])
        weights = flat[count:].reshape(width, outputs).astype(np.float32)
        mixed = (shares.astype(np.float32) @ flat_layers).reshape(items, width)
        predicted = mixed @ weights
        if classes is None:
            residuals = predicted - targets[:, None]
            total = float((residuals**2).sum(dtype=np.float64)) / 2
        else:
            log_probabilities = log_softmax(predicted, axis=1)
            total = -float(log_probabilities[rows, targets].sum(dtype=np.float64))
            residuals = np.exp(log_probabilities)
            residuals[rows, targets] -= 1
        total += strength / 2 * float((weights**2).sum())
        slope = mixed.T @ residuals + strength * weights
        # of each share: its layer times what the loss wants of the mixed features, (layers + 1,)
        of_shares = (flat_layers @ (residuals @ weights.T).reshape(-1)).astype(np.float64)
        of_logits = shares * (of_shares - shares @ of_shares)
        return total, np.concatenate([of_logits, slope.reshape(-1).astype(np.float64)])

    begin = np.zeros(count + width * outputs)
    options = {"maxiter": _STEPS, "ftol": 1e-6, "gtol": 0.0, "maxcor": 10}
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options=options)
    return softmax(found.x[:count])


def center_of_gravity(shares: Numbers) -> float:
    """Return the mean layer, weighted by the layers' shares; 0 is the embeddings.

    >>> center_of_gravity(np.array([0.5, 0.0, 0.5]))
    1.0
    """
    return float(np.arange(len(shares)) @ shares)


_SAMPLES = 500
_TAILS = (0.025, 0.975)
_MAJORITY = "most frequent label"


@dataclass(frozen=True)
class LayerScore:
    """What the probes of a layer score; means over seeds."""

    layer: int
    """0 is the output of the embeddings."""
    score: float
    interval: Interval
    """95%, over held-out rows and, of several seeds, over these too."""
    scores: list[float]
    """Score with each seed."""
    control: float
    selectivity: float
    """The score less that of the control task."""
    bits: float | None
    """Length of the online code of the training labels; None for regression."""
    compression: float | None
    """How many times shorter it is than the uniform code."""
    strength: float
    """How much the weights of its probes are held back."""
    gap: Interval
    """95% interval of how much more the best layer scores, on the same rows; None for the best one itself."""
    is_as_good: bool
    """Whether the layer is not shown to be worse than the best."""


@dataclass(frozen=True)
class ProbedLayers:
    """What the probes of all layers score."""

    layers: list[LayerScore]
    best_layer: int
    baselines: dict[str, float]
    """What predicts the most frequent label, or that of each word, scores."""
    above_baseline: Interval
    """95% interval of how much more the best layer scores than the most frequent label; for numbers, than 0."""
    labels: int
    train_items: int
    """That the probe of the first seed learns from; those of the others may differ a little."""
    test_items: int
    mixing: list[float]
    """How much a probe takes of each layer, the mean over seeds."""
    center_of_gravity: float
    center_deviation: float | None
    """Standard deviation over seeds; None for one."""
    notes: list[str]

    @property
    def as_good(self) -> list[int]:
        """The layers that are not shown to be worse than the best one, and it."""
        return [one.layer for one in self.layers if one.is_as_good]


def probe_layers(
    task: ProbeTask, train: ItemVectors, test: ItemVectors, *, seeds: Sequence[int], most: int
) -> ProbedLayers:
    """Train and score probes at each layer, and compare the layers.

    Args:
        task: what there is to tell.
        train: vectors of the training items.
        test: vectors of the items to score.
        seeds: each trains a probe per layer.
        most: items that a probe is trained on, and that it is scored on.
    """
    chosen = draw_test_items(task.test, most)
    task = replace(task, test=task.test.select(chosen))
    encoded = encode_labels(task)
    results = []
    with stage("probing layers", train.vectors.layers + 1) as tick:
        for layer in range(train.vectors.layers + 1):
            features, test_features = train.features(layer), test.features(layer, chosen)
            results.append(probe_layer(encoded, features, test_features, seeds=seeds, most=most))
            tick(1)
    mixing = []
    with stage("weighing layers", len(seeds)) as tick:
        strength = statistics.median_low([of_layer.strength for of_layer in results])
        for seed in seeds:
            mixing.append(_mix_for_seed(encoded, train, strength, seed, most))
            tick(1)
    centers = [center_of_gravity(shares) for shares in mixing]
    compared = _Comparison(encoded, results)
    layers, best = compared.layers(), compared.best
    baselines, above = compared.baselines()
    return ProbedLayers(
        layers=layers,
        best_layer=best,
        baselines=baselines,
        above_baseline=above,
        labels=encoded.classes,
        train_items=len(draw_items(task.train, most, seeds[0]).fitting),
        test_items=len(task.test),
        mixing=np.mean(mixing, axis=0).tolist(),
        center_of_gravity=statistics.fmean(centers),
        center_deviation=statistics.stdev(centers) if len(centers) > 1 else None,
        notes=[*task.notes, *_find_notes(encoded, layers, baselines, best, above)],
    )


def _mix_for_seed(encoded: EncodedTask, vectors: ItemVectors, strength: float, seed: int, most: int) -> Numbers:
    """Learn the shares of layers with the training items of a seed."""
    fitting = draw_items(encoded.task.train, most, seed).fitting
    layers = read_all_layers(vectors, fitting)
    targets = encoded.train[fitting[: layers.shape[1]]]
    if encoded.task.is_regression:
        return mix_layers(layers, (targets - targets.mean()).astype(np.float32), strength)
    return mix_layers(layers, targets, strength, encoded.classes)


class _Comparison:
    """Scores on rows that are resampled alike for all layers, so that layers are compared on the same rows."""

    def __init__(self, encoded: EncodedTask, results: Sequence[LayerResult]) -> None:
        self.encoded, self.results = encoded, results
        owners, first = np.unique(encoded.task.test.owners, return_index=True)
        self.rows = len(owners)
        self.members = np.split(np.arange(len(encoded.test)), first[1:])
        self.scores = [[one.score for one in of_layer.seeds] for of_layer in results]
        self.resampled = [self._resample_mean([one.predicted for one in of_layer.seeds]) for of_layer in results]
        self.best = int(np.argmax([statistics.fmean(of_layer) for of_layer in self.scores]))

    def layers(self) -> list[LayerScore]:
        layers = []
        for layer, of_layer in enumerate(self.results):
            score = statistics.fmean(self.scores[layer])
            control = statistics.fmean(seed.control for seed in of_layer.seeds)
            gap = None if layer == self.best else self._gap(layer)
            codes = [one.code for one in of_layer.seeds if one.code]
            layers.append(
                LayerScore(
                    layer=layer,
                    score=score,
                    interval=self._interval(layer),
                    scores=self.scores[layer],
                    control=control,
                    selectivity=score - control,
                    bits=statistics.fmean(code.bits for code in codes) if codes else None,
                    compression=statistics.fmean(code.compression for code in codes) if codes else None,
                    strength=of_layer.strength,
                    gap=gap,
                    is_as_good=layer == self.best or gap is None or gap[0] <= 0,
                )
            )
        return layers

    def baselines(self) -> tuple[dict[str, float], Interval]:
        """Score what needs no vectors, and return how much the best layer is above the first of these."""
        scores, resampled = self.scores[self.best], self.resampled[self.best]
        if self.encoded.task.is_regression:  # a constant has no correlation
            return {}, self._interval(self.best)
        train, test = self.encoded.task.train, self.encoded.task.test
        majority, of_groups = most_frequent(self.encoded.train, train.groups, test.groups)
        constant = np.full_like(self.encoded.test, majority)
        baselines = {_MAJORITY: self.encoded.score(self.encoded.test, constant)}
        if self.encoded.task.group_name:
            name = f"{_MAJORITY} of each {self.encoded.task.group_name}"
            baselines[name] = self.encoded.score(self.encoded.test, of_groups)
        above = [score - baselines[_MAJORITY] for score in scores]
        return baselines, self._interval_of(above, resampled - self._resample_mean([constant]))

    def _resample_mean(self, predictions: Sequence[Numbers]) -> Numbers:
        """Return the mean score of predictions in each resample of rows, (resamples,)."""
        score = self._scorer(predictions)
        return resample_mean(score, len(predictions), self.rows, samples=_SAMPLES)["score"]

    def _scorer(self, predictions: Sequence[Numbers]) -> Callable[[int, Numbers], dict[str, float]]:
        gold = self.encoded.test

        def score(seed: int, numbers: Numbers) -> dict[str, float]:
            items = np.concatenate([self.members[number] for number in numbers])
            return {"score": self.encoded.score(gold[items], predictions[seed][items])}

        return score

    def _interval(self, layer: int) -> Interval:
        if len(self.scores[layer]) > 1:
            return mean_interval(self.scores[layer], self.resampled[layer], self.rows)
        score = self._scorer([self.results[layer].seeds[0].predicted])
        return bootstrap_intervals(lambda numbers: score(0, numbers), self.rows, samples=_SAMPLES)["score"]

    def _gap(self, layer: int) -> Interval:
        pairs = zip(self.scores[self.best], self.scores[layer], strict=True)
        differences = [best - other for best, other in pairs]
        return self._interval_of(differences, self.resampled[self.best] - self.resampled[layer])

    def _interval_of(self, scores: Sequence[float], resampled: Numbers) -> Interval:
        """Return the interval of a difference: over seeds and rows, or over rows where there is one seed."""
        if len(scores) > 1:
            return mean_interval(scores, resampled, self.rows)
        low, high = np.quantile(resampled[np.isfinite(resampled)], _TAILS)
        return float(low), float(high)


def _find_notes(
    encoded: EncodedTask, layers: Sequence[LayerScore], baselines: Mapping[str, float], best: int, above: Interval
) -> list[str]:
    """Say what the scores do not show."""
    notes = []
    if encoded.new_labels:
        notes.append(f"held-out items whose label no training row has, never right: {encoded.new_labels:,}")
    if above is None or above[0] <= 0:
        than = "no correlation" if encoded.task.is_regression else "the most frequent label"
        notes.append(f"no layer is shown to be better than {than}: these vectors may not tell the label at all")
    notes += [
        f"no layer is above the {name}, which reads no text: {score:.4f}"
        for name, score in baselines.items()
        if name != _MAJORITY and layers[best].score <= score
    ]
    as_good = [one.layer for one in layers if one.is_as_good and one.layer != best]
    if as_good:
        names = ", ".join(map(str, as_good))
        notes.append(f"the best layer is not shown: {best} is not better than {names} beyond chance")
    if layers[best].selectivity <= 0:
        notes.append("selectivity is not above 0: the probe learns the labels of the control task as well")
    return notes
