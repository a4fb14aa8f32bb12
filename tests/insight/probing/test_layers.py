"""A label that is planted from a known layer on is found there; what is random is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bertkit.insight.probing import layers
from bertkit.insight.probing.layers import probe_layers
from tests.insight.probing.made_up import make_task


@pytest.fixture(autouse=True, scope="module")
def few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "_SAMPLES", 60)
        yield


@pytest.fixture(scope="module")
def planted():
    task, train, test = make_task(known_from=2)
    return probe_layers(task, train, test, seeds=[1, 2, 3], most=1000)


def test_a_planted_label_is_found_from_its_layer_on(planted):
    scores = [one.score for one in planted.layers]
    assert max(scores[:2]) < 0.5 < 0.75 < min(scores[2:])
    assert planted.best_layer in planted.as_good and set(planted.as_good) <= {2, 3, 4}
    assert planted.above_baseline[0] > 0.2
    assert all(one.compression < 1.15 for one in planted.layers[:2])
    assert all(one.compression > 1.5 for one in planted.layers[2:])
    assert all(one.interval[0] < one.score < one.interval[1] for one in planted.layers)
    assert planted.baselines["most frequent label"] < 0.45
    assert planted.center_of_gravity > 1.9 and sum(planted.mixing) == pytest.approx(1)


def test_what_is_not_shown_is_said(planted):
    assert any(note.startswith("the best layer is not shown") for note in planted.notes)
    assert not any("no layer is shown" in note for note in planted.notes)


def test_a_random_label_has_no_selectivity_and_beats_nothing():
    task, train, test = make_task(known_from=5)
    found = probe_layers(task, train, test, seeds=[1, 2], most=1000)
    assert max(abs(one.selectivity) for one in found.layers) < 0.1
    assert any("no layer is shown to be better than the most frequent label" in note for note in found.notes)
    assert all(one.compression < 1.1 for one in found.layers)


def test_the_words_of_a_control_task_are_known_by_heart_where_vectors_tell_them():
    """Where the vectors are the words themselves, the control task is as easy as the task, and selectivity low."""
    from tests.insight.probing.made_up import make_items, make_vectors

    rng = np.random.default_rng(0)
    parts = []
    for count in (300, 200):
        words = rng.integers(0, 6, size=count)
        labels = [f"label {word % 2}" for word in words]
        vectors = make_vectors(np.eye(6)[words], 0, rng, size=6.0)
        parts.append((make_items(labels, [f"w{word}" for word in words]), vectors))
    task = replace(make_task()[0], train=parts[0][0], test=parts[1][0], control="types")
    found = probe_layers(task, parts[0][1], parts[1][1], seeds=[1], most=1000)
    assert all(one.score > 0.97 and one.control > 0.9 for one in found.layers)
    assert found.baselines["most frequent label of each word"] == 1.0
    assert max(one.selectivity for one in found.layers) < 0.1


def test_numbers_are_told_by_regression():
    task, train, test = make_task()
    rng = np.random.default_rng(1)
    values = []
    for items, vectors in ((task.train, train), (task.test, test)):
        signal = rng.normal(size=(len(items), 1))
        vectors.vectors.vectors[:, 1:, :1] += 3 * signal[:, None].astype(np.float32)
        values.append(replace(items, labels=signal[:, 0].tolist(), groups=[]))
    task = replace(task, train=values[0], test=values[1], metric="spearmanr", is_regression=True, group_name="")
    found = probe_layers(task, train, test, seeds=[1, 2], most=1000)
    assert abs(found.layers[0].score) < 0.2 and found.layers[2].score > 0.85
    assert found.layers[2].bits is None and abs(found.layers[2].control) < 0.25
    assert found.baselines == {} and found.above_baseline[0] > 0.8


def test_labels_that_only_held_out_rows_have_are_told_of():
    task, train, test = make_task(train=120, test=60)
    labels = ["new", *task.test.labels[1:]]
    task = replace(task, test=replace(task.test, labels=labels))
    found = probe_layers(task, train, test, seeds=[1], most=1000)
    assert "held-out items whose label no training row has, never right: 1" in found.notes
    assert found.labels == 3
