"""The words of clusters, by hand on few texts."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from bertkit.vectors.groups.topics import find_examples, find_words

TEXTS = ["the cat sees the dog", "the dog, the cat!", "the ship sails", "a ship in the sea", "zebra"]
LABELS = np.array([0, 0, 1, 1, -1])


def by_hand(cluster):
    """Class-based TF-IDF in plain loops."""
    counts = [Counter(), Counter()]
    for text, label in zip(TEXTS[:4], LABELS, strict=False):
        counts[label].update(word.strip(",!") for word in text.split() if len(word.strip(",!")) > 1)
    totals, other = counts[0] + counts[1], counts[1 - cluster]
    mean = totals.total() / 2
    weights = {}
    for word, count in counts[cluster].items():
        share = count / counts[cluster].total()
        if share >= 2 * other[word] / other.total():
            weights[word] = math.sqrt(share) * math.log(1 + mean / totals[word])
    return sorted(weights, key=lambda word: (-weights[word], word))


def test_words_are_those_of_the_formula_without_words_of_every_cluster():
    words = find_words(TEXTS, LABELS)
    assert words == [by_hand(0), by_hand(1)]
    assert words[0][:2] == ["cat", "dog"]
    assert "the" not in words[1]
    assert "zebra" not in words[0] + words[1]


def test_texts_without_words_have_none():
    assert find_words(["!", "?"], np.array([0, 1])) == [[], []]


def test_examples_are_the_nearest_with_different_texts():
    vectors = np.array([[1, 0], [0.9, 0.1], [1, 0], [0, 1], [0.5, 0.5], [0.6, 0.4]], dtype=np.float32)
    labels = np.array([0, 0, 0, 1, 0, 0])
    found = find_examples(vectors, labels, np.eye(2, dtype=np.float32), ["a", "b", "a", "c", "d", "e"])
    assert found == [[0, 1, 5], [3]]
