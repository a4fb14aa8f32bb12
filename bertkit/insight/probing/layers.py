"""Probes of all layers, compared: with baselines and control tasks, and the layers with one another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertkit.insight.probing.draws import draw_items, draw_test_items, most_frequent
from bertkit.insight.probing.items import ItemVectors, ProbeTask
from bertkit.insight.probing.mixing import center_of_gravity, mix_layers, read_all_layers
from bertkit.insight.probing.probes import EncodedTask, LayerResult, encode_labels, probe_layer
from bertkit.metrics import Numbers
from bertkit.metrics.intervals import Interval, bootstrap_intervals
from bertkit.metrics.seeds import mean_interval, resample_mean
from bertkit.progress import Progress, stage

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
    """Of each seed."""
    control: float
    selectivity: float
    """The score less that of the control task."""
    bits: float | None
    """Of the online code of the training labels; None for regression."""
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
    task: ProbeTask, train: ItemVectors, test: ItemVectors, *, seeds: Sequence[int], most: int, progress: Progress
) -> ProbedLayers:
    """Train and score probes at each layer, and compare the layers.

    Args:
        task: what there is to tell.
        train: vectors of the training items.
        test: vectors of the items to score.
        seeds: each trains a probe per layer.
        most: items that a probe is trained on, and that it is scored on.
        progress: told of each layer.
    """
    chosen = draw_test_items(task.test, most)
    task = replace(task, test=task.test.select(chosen))
    encoded = encode_labels(task)
    results = []
    with stage(progress, "probing layers", train.layers + 1) as tick:
        for layer in range(train.layers + 1):
            features, test_features = train.features(layer), test.features(layer, chosen)
            results.append(probe_layer(encoded, features, test_features, seeds=seeds, most=most))
            tick(1)
    mixing = []
    with stage(progress, "weighing layers", len(seeds)) as tick:
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
