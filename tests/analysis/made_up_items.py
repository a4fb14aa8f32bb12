"""Items with made-up vectors, in which a label is present from a known layer on."""

from __future__ import annotations

import numpy as np

from bertkit.analysis.layer_vectors import LayerVectors
from bertkit.analysis.probe_tasks import ProbeItems, ProbeTask
from bertkit.analysis.probes import ItemVectors

LAYERS, WIDTH = 4, 12


def make_items(labels, groups=(), per_row=1):
    count = len(labels)
    owners = np.arange(count) // per_row
    addresses = np.stack([owners, np.arange(count) % per_row], axis=1)[:, None]
    return ProbeItems([{"text": "a"}] * (owners[-1] + 1), "word", addresses, list(labels), list(groups))


def make_vectors(signal, known_from, rng, size=2.0):
    """Return vectors of noise, with `signal` in some of their components from a layer on."""
    vectors = rng.normal(size=(len(signal), LAYERS + 1, WIDTH)).astype(np.float32)
    vectors[:, known_from:, : signal.shape[1]] += size * signal[:, None]
    numbers = np.arange(len(signal))
    return ItemVectors(LayerVectors(vectors, numbers, 0 * numbers), numbers[:, None], "alone")


def make_task(known_from=2, train=300, test=200, seed=0, words=30):
    """Return a task whose three labels can be read from a layer on; the word of an item tells nothing of it."""
    rng = np.random.default_rng(seed)
    made = []
    for count in (train, test):
        labels = rng.integers(0, 3, size=count)
        groups = [f"w{number}" for number in rng.integers(0, words, size=count)]
        made.append(
            (make_items([f"label {one}" for one in labels], groups), make_vectors(np.eye(3)[labels], known_from, rng))
        )
    (train_items, of_train), (test_items, of_test) = made
    task = ProbeTask("planted", "Where is it?", train_items, test_items, "accuracy", group_name="word")
    return task, of_train, of_test
