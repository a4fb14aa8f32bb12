"""Which vectors items have, and how two become features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bertkit.errors import DataError
from bertkit.insight.layer_vectors import LayerVectors
from bertkit.insight.probing.items import find_vectors, one_per_text
from tests.insight.probing.made_up import make_items, make_task


def make_words():
    """Rows of two, one and two words with a vector each; the second word of the third row has none."""
    rows, index = np.array([0, 0, 1, 2]), np.array([0, 1, 0, 0])
    return LayerVectors(np.arange(24, dtype=np.float32).reshape(4, 2, 3), rows, index)


def test_items_find_their_vectors_and_those_without_one_are_left_out():
    items = make_items(["a", "b", "c", "d"], ["u", "v", "w", "x"])
    items = replace(items, addresses=np.array([[[0, 1]], [[2, 1]], [[2, 0]], [[1, 0]]]))
    kept, vectors = find_vectors(items, make_words())
    assert kept.labels == ["a", "c", "d"] and kept.groups == ["u", "w", "x"] and len(kept) == 3
    assert vectors.numbers[:, 0].tolist() == [1, 3, 2] and vectors.vectors.layers == 1
    np.testing.assert_array_equal(vectors.features(1), [[9, 10, 11], [21, 22, 23], [15, 16, 17]])
    np.testing.assert_array_equal(vectors.features(0, np.array([2])), [[12, 13, 14]])


def test_two_vectors_become_features():
    items = replace(make_items(["a"]), addresses=np.array([[[0, 0], [1, 0]]]))
    u, v = np.array([0, 1, 2]), np.array([12, 13, 14])
    edge = find_vectors(replace(items, combination="edge"), make_words())[1].features(0)
    np.testing.assert_array_equal(edge[0], [*u, *v, *(u * v)])
    difference = find_vectors(replace(items, combination="difference"), make_words())[1].features(0)
    np.testing.assert_array_equal(difference[0], [*(v - u), *(u * v)])


def test_too_little_is_refused():
    task = make_task(train=12, test=4)[0]
    task.check()
    with pytest.raises(DataError, match="the training rows have one label, a -"):
        replace(task, train=replace(task.train, labels=["a"] * 12)).check()
    with pytest.raises(DataError, match="1 held-out rows with a label, of at least 2"):
        replace(task, test=task.test.select(np.array([0]))).check()
    with pytest.raises(DataError, match="the training rows have no label"):
        replace(task, train=task.train.select(np.array([], dtype=int))).check()


def test_texts_are_their_words():
    items = one_per_text([["a", "b"], ["c"]], ["x", "y"])
    assert items.rows == [{"text": "a b"}, {"text": "c"}] and items.addresses.tolist() == [[[0, 0]], [[1, 0]]]
