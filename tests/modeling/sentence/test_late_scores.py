"""Scores of late interaction, beside a plain loop over tokens."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.modeling.sentence.late_scores import max_sim, real_tokens
from tests.modeling.sentence.test_late import DOCUMENTS, QUERIES, pad, score_by_loop


@pytest.mark.parametrize("numbers", [2**23, 50])  # products of all documents at once, or of one or two
def test_scores_are_those_of_a_loop_over_tokens(monkeypatch, numbers):
    monkeypatch.setattr("bertkit.modeling.sentence.late_scores._NUMBERS", numbers)
    expected = [[score_by_loop(query, document) for document in DOCUMENTS] for query in QUERIES]
    np.testing.assert_allclose(max_sim(QUERIES, DOCUMENTS), expected, rtol=1e-5)


def test_padding_is_left_out():
    assert all(np.array_equal(real_tokens(one.numpy()), text) for one, text in zip(pad(QUERIES), QUERIES, strict=True))
