"""Sentence-order prediction: swapped pairs of neighbors, and a head that learns their order."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.pretraining.objectives import nsp, sop
from bertkit.pretraining.sentence_pairs import SWAPPED
from tests.pretraining.objectives.texts import (
    LENGTH,
    assert_toy_pairs_are_learned,
    make_corpus,
    make_features,
    make_setup,
)


def test_segments_are_neighbors_in_either_order():
    corpus, context = make_corpus(), make_setup("sop")
    pairs = sop.examples(corpus, LENGTH, context, 0)
    edges = corpus.document_edges()
    owners = [np.searchsorted(edges, pairs.bounds[:, column], side="right") for column in (0, 2)]
    assert (owners[0] == owners[1]).all()
    is_swapped = pairs.bounds[:, 4] == SWAPPED
    assert (pairs.bounds[is_swapped, 2] < pairs.bounds[is_swapped, 0]).all()
    assert (pairs.bounds[~is_swapped, 0] < pairs.bounds[~is_swapped, 2]).all()
    assert 0.3 < is_swapped.mean() < 0.7


def test_everything_but_the_pairs_is_that_of_next_sentence_prediction():
    corpus, context = make_corpus(), make_setup("sop")
    assert sop.score is nsp.score and sop.collator is nsp.collator
    assert sop.OPTIONS == nsp.OPTIONS
    ours, theirs = (objective.examples(corpus, LENGTH, context, 0) for objective in (sop, nsp))
    assert not np.array_equal(ours.bounds, theirs.bounds)
    batch = sop.collator(context)(make_features(sop, context, corpus)[:4])
    model = sop.load_model(context).eval()
    sums = [list(objective.sum_losses(model, batch).values()) for objective in (sop, nsp)]
    assert [value.item() for value in sums[0]] == pytest.approx([value.item() for value in sums[1]])
    assert list(sop.sum_losses(model, batch)) == list(sop.LOSS_TERMS) == ["mlm", "sop"]


@pytest.mark.slow
def test_toy_pairs_are_learned():
    assert_toy_pairs_are_learned(sop, vocabulary="sentences")
