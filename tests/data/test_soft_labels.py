"""Soft labels in the cells of a column: how they are read, checked and compared with gold labels."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bertkit.data.soft_labels import measure_agreement, read_soft_labels, to_logits
from bertkit.errors import DataError
from bertkit.recipe import load_recipe


def read(cell, labels=None, *, normalize=False):
    recipe = load_recipe("classify", {"labels": labels, "distillation.normalize": normalize})
    return read_soft_labels(cell, recipe)


@pytest.mark.parametrize(
    ("cell", "settings"),
    [
        ({"bad": 0.25, "good": 0.75}, {}),
        ('{"bad": 0.25, "good": 0.75}', {}),
        ("{'bad': 0.25, 'good': 0.75, 'odd': None}", {}),  # a struct of Parquet has null for labels without a number
        ([0.25, 0.75], {"labels": ["bad", "good"]}),
        ("[0.25, 0.75]", {"labels": ["bad", "good"]}),
        ({"bad": 1, "good": 3}, {"normalize": True}),
        ([2, 6], {"normalize": True, "labels": ["bad", "good"]}),
    ],
)
def test_every_form_of_a_cell_has_the_same_probabilities(cell, settings):
    assert read(cell, **settings) == {"bad": 0.25, "good": 0.75}


def test_rounded_probabilities_are_divided_by_their_sum():
    assert read({"a": 0.333, "b": 0.333, "c": 0.333}) == pytest.approx(dict.fromkeys("abc", 1 / 3))


@pytest.mark.parametrize(
    ("cell", "settings", "message"),
    [
        ("", {}, "'' is not a probability per label"),
        (None, {}, "None is not a probability per label"),
        (0.9, {}, "0.9 is not a probability per label"),
        ("{broken", {}, "'{broken' is not a probability per label"),
        ({"a": 1.2, "b": -0.2}, {}, "-0.2 is not a probability of 'b'"),
        ({"a": "much", "b": 0.2}, {}, "'much' is not a probability of 'a'"),
        ('{"a": NaN, "b": 0.2}', {}, "nan is not a probability of 'a'"),
        ({"a": 0.6, "b": 0.402}, {}, "probabilities add up to 1.002, not 1"),
        ({"a": 0, "b": 0}, {"normalize": True}, "probabilities add up to 0, not 1"),
        ({}, {}, "probabilities add up to 0, not 1"),
        ([0.4, 0.6], {}, "a list of 2 probabilities, but the recipe declares 0 labels"),
        ([0.4, 0.6], {"labels": ["a", "b", "c"]}, "a list of 2 probabilities, but the recipe declares 3 labels"),
    ],
)
def test_a_wrong_cell_is_refused(cell, settings, message):
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read(cell, **settings)
    assert caught.value.remedy


def test_the_softmax_of_the_logits_has_the_probabilities():
    from scipy.special import softmax

    random = np.random.default_rng(0).dirichlet([0.3, 1, 2], size=50)
    random[:10] = np.eye(3)[np.arange(10) % 3]  # votes that all agree
    logits = to_logits(random)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(softmax(logits, axis=1), random, atol=1e-12)


def test_the_agreement_is_that_of_scikit_learn():
    from sklearn.metrics import accuracy_score, cohen_kappa_score

    random = np.random.default_rng(1)
    probabilities, gold = random.dirichlet([1, 1, 2], size=200), random.integers(0, 3, 200)
    chosen = probabilities.argmax(axis=1)
    expected = (accuracy_score(gold, chosen), cohen_kappa_score(gold, chosen))
    assert measure_agreement(probabilities, gold.tolist()) == pytest.approx(expected)
