"""What of a head's outputs is explained, against its definition."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, logit, softmax

from bertkit.errors import RecipeError
from bertkit.modeling.heads.targets import (
    build_label_targets,
    build_logit_targets,
    build_span_targets,
    build_tag_targets,
    build_vector_target,
    compute_class_score,
    compute_log_odds,
)

LOGITS = np.array([[0.5, -1.0, 2.0], [3.0, 0.0, 0.1]])


def test_log_odds_are_those_of_the_softmax():
    for number in range(3):
        found = compute_log_odds(torch.from_numpy(LOGITS), number)
        np.testing.assert_allclose(found, logit(softmax(LOGITS, axis=1)[:, number]), rtol=1e-5)
    assert compute_log_odds(torch.tensor([[1.5]]), 0).tolist() == [1.5]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("way", ["windows_mean", "windows_max"])
def test_windows_are_combined_as_their_probabilities_are(several, way):
    found = expit(LOGITS) if several else softmax(LOGITS, axis=1)
    combined = found.max(axis=0) if way == "windows_max" else found.mean(axis=0)
    combined /= 1 if several else combined.sum()
    outputs = {"logits": torch.from_numpy(LOGITS)[None]}
    for number in range(3):
        score = compute_class_score(outputs, number, several=several, windows=way)
        np.testing.assert_allclose(score, [logit(combined[number])], rtol=1e-6)


def test_the_labels_of_the_prediction_come_first():
    targets = build_label_targets(["a", "b", "c"], ["c"], compute_class_score)
    assert [(target.name, target.is_predicted) for target in targets] == [("c", True), ("a", False), ("b", False)]
    outputs = {"logits": torch.from_numpy(LOGITS)}
    torch.testing.assert_close(targets[0].score(outputs), compute_log_odds(outputs["logits"], 2))


def test_texts_are_compared_by_cosine_or_product():
    vectors = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [2.0, 0.0]]])
    assert build_vector_target(1, dot=True).score({"vectors": vectors}).tolist() == [6.0]
    assert build_vector_target(1, dot=False).score({"vectors": vectors}).item() == pytest.approx(0.6)


SETUP = SimpleNamespace(labels=("O", "B-PER", "I-PER"))
TAGGED = {"prediction": ["O", "B-PER", "O"], "word_probabilities": [0.9, 0.8, 0.7]}
ROW = {"tokens": ["Then", "Ann", "ran"]}
WINDOWS = [{"words": [0, 1], "positions": [1, 2]}, {"words": [2], "positions": [4]}]


def test_tags_are_explained_where_entities_begin_or_the_model_is_least_sure():
    targets = build_tag_targets({**TAGGED, "entities": [{}]}, [], WINDOWS, ROW, SETUP)
    assert [(one.name, one.is_predicted, one.feature) for one in targets] == [
        ("Then: O", False, 0),
        ("Ann: B-PER", True, 0),
        ("ran: O", False, 1),
    ]
    logits = torch.arange(18.0).view(1, 6, 3)
    torch.testing.assert_close(targets[2].score({"logits": logits}), compute_log_odds(logits[:, 4], 0))
    assert [one.name for one in build_tag_targets(TAGGED, [], WINDOWS, ROW, SETUP) if one.is_predicted] == ["ran: O"]
    unread = {"prediction": ["O"], "word_probabilities": [None]}
    assert not build_tag_targets(unread, [], [], {"tokens": ["x"]}, SETUP)


def test_an_answer_is_explained_in_the_window_that_reads_it_best():
    offsets = np.array([[0, 3], [4, 7], [8, 9]])
    features = [{"context": 2, "offsets": offsets[:2]}, {"context": 2, "offsets": offsets[1:]}]
    outputs = [
        {"start_logits": np.array([0.0, 9, 1, 2]), "end_logits": np.array([0.0, 9, 1, 3])},
        {"start_logits": np.array([0.5, 9, 4, 2]), "end_logits": np.array([1.0, 9, 5, 3])},
    ]
    (target,) = build_span_targets({"prediction": "two", "start": 4, "end": 7}, outputs, features, {}, SETUP)
    assert (target.name, target.feature) == ("two", 1)
    score = target.score({name: torch.from_numpy(values)[None] for name, values in outputs[1].items()})
    # the question, at position 1, does not compete
    expected = log_softmax([0.5, 4, 2])[1] + log_softmax([1.0, 5, 3])[1]
    assert score.item() == pytest.approx(expected, rel=1e-5)
    (target,) = build_span_targets({"prediction": "", "start": None, "end": None}, outputs, features, {}, SETUP)
    assert (target.name, target.feature) == ("no answer", 0)


def test_a_family_that_says_nothing_has_its_highest_logit_explained():
    targets = build_logit_targets([{"logits": LOGITS[0]}], SimpleNamespace(labels=("a", "b", "c")), "own.task")
    assert [target.name for target in targets if target.is_predicted] == ["c"]
    assert build_logit_targets([{"logits": LOGITS[0, :1]}], SimpleNamespace(labels=()), "own.task")[0].name == "value"
    with pytest.raises(RecipeError, match=r"own\.task does not define explanation targets"):
        build_logit_targets([{"logits": LOGITS}], SimpleNamespace(labels=()), "own.task")
