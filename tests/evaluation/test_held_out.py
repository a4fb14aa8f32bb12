"""Held-out text: every evaluation, whatever the run's seed, scores the same blocks with the same masks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bertkit.errors import DataError
from bertkit.evaluation.held_out import make_held_out_features, score_held_out
from bertkit.pretraining.objectives import mlm
from tests.pretraining.objectives.texts import make_corpus, make_setup


def test_the_seed_of_a_run_changes_no_masks():
    corpus = make_corpus(20)
    first, second = (make_held_out_features(corpus, mlm, make_setup("mlm", seed=seed)) for seed in (1, 2))
    assert len(first) == len(second) > 1
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one["input_ids"], other["input_ids"])
        assert np.array_equal(one["labels"], other["labels"])


def test_no_more_blocks_are_scored_than_the_recipe_says():
    assert len(make_held_out_features(make_corpus(20), mlm, make_setup("mlm", eval_blocks=3))) == 3


def test_text_without_an_example_is_refused():
    with pytest.raises(DataError, match="the held-out text yields no example"):
        make_held_out_features(make_corpus(1), SimpleNamespace(examples=lambda *_: []), make_setup("mlm"))


def test_measuring_leaves_the_model_as_it_was_and_repeats():
    context = make_setup("mlm")
    model = mlm.load_model(context).train()
    features = make_held_out_features(make_corpus(6), mlm, context)
    scores = score_held_out(model, features, mlm.collator(context), mlm, "fp32")
    assert model.training
    assert scores["perplexity"] == pytest.approx(np.exp(scores["loss"]))
    assert score_held_out(model, features, mlm.collator(context), mlm, "fp32") == scores
