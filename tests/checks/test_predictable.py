"""What little information predicts, beside chance."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bertkit.checks.predictable import Gain, classes_of, measure_numbers, measure_words


def test_gold_values_as_classes():
    assert classes_of(["b", "a"] * 30) == [1, 0] * 30
    assert classes_of([2, 10] * 30) == [1, 0] * 30
    assert classes_of([0.5, 4.0] * 30) == [0, 1] * 30
    assert classes_of(["a"] * 60) is None
    assert classes_of([["a"], ["b"]] * 30) is None
    assert classes_of(list(map(str, range(60)))) is None
    assert classes_of(["b", "a"]) is None


def test_a_gain_counts_beyond_chance():
    assert Gain(0.75, 0.5, 10_000).share == pytest.approx(0.5)
    assert Gain(0.51, 0.5, 1000).share == 0


def test_words_that_tell_and_words_that_do_not():
    rng = random.Random(0)
    classes = [rng.randrange(2) for _ in range(200)]
    noise = [{rng.choice("abcdef"): 1.0} for _ in classes]
    assert measure_words(noise, classes)[0].share == 0
    gain, scores = measure_words(
        [{**row, f"w{label}": 1.0} for row, label in zip(noise, classes, strict=True)], classes
    )
    assert gain.accuracy == 1
    assert all((score > 0) == label for score, label in zip(scores.tolist(), classes, strict=True))
    assert measure_words([{}] * 200, classes)[0].accuracy == pytest.approx(max(np.bincount(classes)) / 200, abs=0.05)


def test_numbers_that_tell_and_numbers_that_do_not():
    rng = random.Random(0)
    classes = [rng.randrange(3) for _ in range(200)]
    noise = np.array([[rng.random()] for _ in classes])
    assert measure_numbers(noise, classes).share == 0
    assert measure_numbers(noise + np.array(classes)[:, None], classes).accuracy > 0.95
