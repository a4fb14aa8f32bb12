"""Probes of made-up vectors, in which a label is planted from a known layer on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bertkit.analysis import probes
from bertkit.analysis.layer_vectors import LayerVectors
from bertkit.analysis.probes import (
    draw_control,
    draw_test_items,
    draw_training_items,
    encode_labels,
    find_center_of_gravity,
    find_majority,
    find_vectors,
    probe_layers,
)
from tests.analysis.made_up_items import make_items, make_task, make_vectors


@pytest.fixture(autouse=True, scope="module")
def few_resamples():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "_SAMPLES", 60)
        yield


@pytest.fixture(scope="module")
def planted():
    task, train, test = make_task(known_from=2)
    return probe_layers(task, train, test, max_items=1000)


def test_a_planted_label_is_found_from_its_layer_on(planted):
    scores = [layer.score for layer in planted.layers]
    assert max(scores[:2]) < 0.5 < 0.75 < min(scores[2:])
    assert planted.best_layer in planted.as_good and set(planted.as_good) <= {2, 3, 4}
    assert planted.above_baseline[0] > 0.2
    assert all(layer.interval[0] < layer.score < layer.interval[1] for layer in planted.layers)
    assert planted.baselines["most frequent label"] < 0.45
    assert planted.center_of_gravity > 1.9
    assert any(note.startswith("the best layer is not certain") for note in planted.notes)
    assert not any("no layer is shown" in note for note in planted.notes)


def test_a_random_label_has_no_selectivity_and_beats_nothing():
    task, train, test = make_task(known_from=5)
    found = probe_layers(task, train, test, max_items=1000)
    assert max(abs(layer.selectivity) for layer in found.layers) < 0.15
    assert any("no layer is shown to be better than the most frequent label" in note for note in found.notes)


def test_the_words_of_a_control_task_are_known_by_heart_where_vectors_tell_them():
    """If the vectors are the words themselves, the control task is as easy as the task, and selectivity is low."""
    rng = np.random.default_rng(0)
    parts = []
    for count in (300, 200):
        words = rng.integers(0, 6, size=count)
        labels = [f"label {word % 2}" for word in words]
        vectors = make_vectors(np.eye(6)[words], 0, rng, size=6.0)
        parts.append((make_items(labels, [f"w{word}" for word in words]), vectors))
    task = replace(make_task()[0], train=parts[0][0], test=parts[1][0], control="types")
    found = probe_layers(task, parts[0][1], parts[1][1], max_items=1000)
    assert all(layer.score > 0.97 and layer.control > 0.9 for layer in found.layers)
    assert found.baselines["most frequent label of each word"] == 1.0
    assert max(layer.selectivity for layer in found.layers) < 0.1


def test_numbers_are_told_by_regression():
    task, train, test = make_task()
    rng = np.random.default_rng(1)
    values = []
    for items, vectors in ((task.train, train), (task.test, test)):
        signal = rng.normal(size=(len(items), 1))
        vectors.vectors.vectors[:, 1:, :1] += 3 * signal[:, None].astype(np.float32)
        values.append(replace(items, labels=signal[:, 0].tolist(), groups=[]))
    task = replace(task, train=values[0], test=values[1], metric="spearmanr", is_regression=True, group_name="")
    found = probe_layers(task, train, test, max_items=1000)
    assert abs(found.layers[0].score) < 0.2 and found.layers[2].score > 0.85
    assert abs(found.layers[2].control) < 0.25
    assert found.baselines == {} and found.above_baseline[0] > 0.8


def test_labels_that_only_held_out_rows_have_are_counted():
    task, train, test = make_task(train=120, test=60)
    task = replace(task, test=replace(task.test, labels=["a new one", *task.test.labels[1:]]))
    assert encode_labels(task)[1][0] == 3
    found = probe_layers(task, train, test, max_items=1000)
    assert "held-out items with a label that no training row has, always wrong: 1" in found.notes
    assert found.labels == 3


def test_rows_to_learn_from_may_have_one_label():
    task, train, test = make_task(train=40, test=20)
    numbers, _ = draw_training_items(task.train, 1000)
    labels = np.full(40, "a", dtype=object)
    labels[np.setdiff1d(np.arange(40), numbers)] = "b"
    task = replace(task, train=replace(task.train, labels=labels.tolist()), test=replace(task.test, labels=["a"] * 20))
    assert all(layer.score == 1.0 for layer in probe_layers(task, train, test, max_items=1000).layers)


def test_the_center_of_gravity_is_the_layer_that_knows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, size=200)
    layers = rng.normal(size=(4, 200, 6)).astype(np.float32)
    layers[2, :, :3] += 3 * np.eye(3)[labels]
    assert find_center_of_gravity(layers, labels, 10.0, is_regression=False) == pytest.approx(2, abs=0.2)
    values = layers[1, :, 0] * 2
    assert find_center_of_gravity(layers, values, 10.0, is_regression=True) == pytest.approx(1, abs=0.2)


# --- Draws ---


def test_rows_are_whole_and_apart():
    items = make_items(["a", "b"] * 100, per_row=4)
    numbers = draw_training_items(items, 10_000)
    fitting, tuning = (set(items.owners[part].tolist()) for part in numbers)
    assert not fitting & tuning and len(fitting) == 45 and len(tuning) == 5
    assert len(numbers[0]) == 180
    assert len(draw_training_items(items, 30)[0]) == 30


def test_items_to_score_are_whole_rows():
    items = make_items(["a", "b"] * 100, per_row=4)
    assert len(draw_test_items(items, 200)) == 200
    chosen = draw_test_items(items, 50)
    assert len(chosen) == 48 and len(set(items.owners[chosen].tolist())) == 12
    assert len(draw_test_items(items, 1)) == 4


def test_a_type_has_one_control_label_in_training_and_in_scoring():
    labels = np.array([0, 1, 2] * 50)
    groups = [f"w{number % 40}" for number in range(150)]
    test_groups = ["w1", "w2", "w1", "new"]
    drawn, gold = draw_control(labels, groups, labels[:4], test_groups, "types")
    by_type = {}
    for group, label in zip([*groups, *test_groups], [*drawn, *gold], strict=True):
        assert by_type.setdefault(group, label) == label
    assert len(set(by_type.values())) == 3


def test_labels_are_shuffled_within_groups():
    labels = np.array([0] * 20 + [1] * 20 + [2] * 20)
    groups = ["a"] * 30 + ["b"] * 30
    shuffled, gold = draw_control(labels, groups, labels[:3], ["a", "a", "b"], "shuffled")
    assert gold.tolist() == [0, 0, 0] and sorted(shuffled[:30]) == sorted(labels[:30])
    assert shuffled.tolist() != labels.tolist()
    every, _ = draw_control(labels, [], labels[:3], [], "shuffled")
    assert sorted(every) == sorted(labels) and 2 in every[:30]


def test_the_most_frequent_label_of_a_word_or_of_all():
    majority, by_word = find_majority(np.array([0, 0, 1, 1, 0]), ["a", "a", "b", "b", "b"], ["b", "a", "new"])
    assert majority == 0 and by_word.tolist() == [1, 0, 0]


# --- Vectors of items ---


def make_words():
    """Rows of two, one and two words with a vector each; the second word of the third row has none."""
    rows, index = np.array([0, 0, 1, 2]), np.array([0, 1, 0, 0])
    return LayerVectors(np.arange(24, dtype=np.float32).reshape(4, 2, 3), rows, index)


def test_items_find_their_vectors_and_those_without_one_are_left_out():
    items = make_items(["a", "b", "c", "d"], ["u", "v", "w", "x"])
    items = replace(items, addresses=np.array([[[0, 1]], [[2, 1]], [[2, 0]], [[1, 0]]]))
    kept, vectors = find_vectors(items, make_words())
    assert kept.labels == ["a", "c", "d"] and kept.groups == ["u", "w", "x"] and len(kept) == 3
    assert vectors.indices[:, 0].tolist() == [1, 3, 2] and vectors.vectors.layers == 1
    np.testing.assert_array_equal(vectors.features(1), [[9, 10, 11], [21, 22, 23], [15, 16, 17]])
    np.testing.assert_array_equal(vectors.features(0, np.array([2])), [[12, 13, 14]])


def test_two_vectors_become_features():
    items = replace(make_items(["a"]), addresses=np.array([[[0, 0], [1, 0]]]))
    u, v = np.array([0, 1, 2]), np.array([12, 13, 14])
    edge = find_vectors(replace(items, combination="edge"), make_words())[1].features(0)
    np.testing.assert_array_equal(edge[0], [*u, *v, *(u * v)])
    difference = find_vectors(replace(items, combination="difference"), make_words())[1].features(0)
    np.testing.assert_array_equal(difference[0], [*(v - u), *(u * v)])
