"""Probes of one layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bertkit.insight.probing.linear import STRENGTHS
from bertkit.insight.probing.probes import encode_labels, probe_layer
from tests.insight.probing.made_up import make_task


def test_labels_are_numbered_those_of_training_first():
    task, _, _ = make_task(train=20, test=10)
    encoded = encode_labels(replace(task, test=replace(task.test, labels=["a new one", *task.test.labels[1:]])))
    assert encoded.names == ["label 0", "label 1", "label 2"]
    assert encoded.test[0] == 3 and encoded.new_labels == 1 and encoded.classes == 3


def test_a_probe_scores_as_a_plain_one_does():
    """Scikit-learn on the same draw, standardized by hand."""
    from sklearn.linear_model import LogisticRegression

    from bertkit.insight.probing.draws import draw_items

    task, train, test = make_task()
    encoded = encode_labels(task)
    found = probe_layer(encoded, train.features(3), test.features(3), seeds=[7], most=150)
    assert found.strength in STRENGTHS
    numbers = draw_items(task.train, 150, 7).fitting
    features = train.features(3)[numbers]
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    wide = [np.c_[(some - mean) / deviation, np.ones(len(some))] for some in (features, test.features(3))]
    plain = LogisticRegression(C=1 / found.strength, fit_intercept=False, tol=1e-8, max_iter=1000)
    predicted = plain.fit(wide[0], encoded.train[numbers]).predict(wide[1])
    right = 0
    for label, gold in zip(predicted, encoded.test, strict=True):
        right += label == gold
    assert abs(found.seeds[0].score - right / len(predicted)) <= 1 / len(predicted)
