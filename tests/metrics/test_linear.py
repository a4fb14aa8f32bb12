"""Linear models of words: what is fitted, and that it is plain JSON."""

import json

import numpy as np
import pytest

from bertkit.metrics.linear import find_pair_features, find_words, fit_linear, sample_rows, score_linear

TEXTS = ["a good film", "a bad film", "good and new", "bad and old", "never seen", "fine or not"]


@pytest.mark.parametrize("gold", [[2, 0, 2, 0, 5, 5], [0, 1, 0, 1, 0, 1], [2.5, 0.5, 2.5, 0.5, 1.0, 1.0]])
def test_a_model_survives_json_and_learns_words_that_two_rows_have(gold):
    features = [find_words(text) for text in TEXTS]
    model = json.loads(json.dumps(fit_linear(features * 20, gold * 20)))
    assert model["classes"] == (sorted(set(gold)) if isinstance(gold[0], int) else None)
    scores = score_linear(model, features)
    if model["classes"]:
        assert [model["classes"][best] for best in scores.argmax(axis=1)] == gold
    else:
        assert np.abs(scores[:, 0] - gold).max() < 0.3
    assert list(fit_linear(features, gold)["weights"]) == ["a", "and", "bad", "film", "good"]


@pytest.mark.parametrize(
    ("texts", "gold"), [(["a b", "c d"], [0, 1]), (["a b", "a b"], [1, 1]), (["", ""], [0.5, 1.5])]
)
def test_where_nothing_can_be_learned_there_is_no_model(texts, gold):
    assert fit_linear([find_words(text) for text in texts], gold) is None


def test_pairs_are_described_by_each_text_and_what_they_share():
    row = {"text": "A cat", "text_pair": "the cat, sat"}
    assert find_pair_features([row]) == {
        "text alone": [{"a": 1.0, "cat": 1.0}],
        "text_pair alone": [{"the": 1.0, "cat": 1.0, "sat": 1.0}],
        "shared words": [{"both": 0.25, "first": 0.5, "second": pytest.approx(1 / 3)}],
    }
    assert find_pair_features([row, {"text": "alone"}]) == find_pair_features([]) == {}
    assert find_pair_features([{"text": "", "text_pair": ""}])["shared words"] == [
        dict.fromkeys(("both", "first", "second"), 0)
    ]


def test_a_sample_is_spread_over_all_rows():
    assert sample_rows([1, 2, 3]) == [1, 2, 3] and sample_rows([]) == []
    assert sample_rows(range(10), max_rows=4) == [0, 2, 5, 7]
