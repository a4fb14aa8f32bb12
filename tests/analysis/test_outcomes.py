"""How wrong an answer is, for families that judge rows in their own ways."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.analysis.outcomes import SORTS, RowAnswer, find_outcomes
from bertkit.errors import DataError
from bertkit.evaluation.stored_predictions import find_scorer, read_rows, read_system
from tests.evaluation.stored_runs import make_rows, make_run, predict


def outcomes_of(tmp_path, predictions, labels=None, **recipe):
    run_folder = make_run(tmp_path / "run", predictions, **recipe)
    system = read_system(run_folder, None)
    if labels is not None:
        system.runs[0].record["identity"]["labels"] = labels
    scorer = find_scorer([system], None)
    return find_outcomes(scorer, system.runs[0], read_rows(system.runs[0], scorer.task))


def test_labels_are_right_or_wrong_with_the_confidence_of_the_wrong_one(tmp_path):
    rows = make_rows(6)
    predictions = predict(rows, {1, 4})
    predictions[1]["probabilities"] = {"bad": 0.9, "good": 0.1}
    predictions[1]["prediction"], predictions[1]["label"] = "bad", "good"
    found = outcomes_of(tmp_path, predictions, metrics=["matthews_correlation"], best_metric="matthews_correlation")
    assert found.rate_name == "share of wrong rows"
    assert found.errors.tolist() == [0, 1, 0, 0, 1, 0]
    assert found.rate == pytest.approx(1 / 3)
    assert [answer.confidence for answer in found.answers] == [None, 0.9, None, None, None, None]
    assert found.answers[1].words == len(rows[1]["text"].split())


def test_entities_are_counted_as_f1_counts_them(tmp_path):
    tokens = ["Ada", "met", "Bob"]
    predictions = [
        {"tokens": tokens, "tags": ["B-PER", "O", "B-PER"], "prediction": ["B-PER", "O", "B-LOC"]},
        {"tokens": tokens, "tags": ["O", "O", "O"], "prediction": ["O", "O", "O"]},
    ]
    predictions = [{**one, "word_probabilities": [0.9, 0.8, 0.7]} for one in predictions]
    recipe = {"task": "token_classification", "metrics": ["f1"], "best_metric": "f1"}
    found = outcomes_of(tmp_path, predictions, ["O", "B-PER", "B-LOC"], **recipe)
    assert (found.errors.tolist(), found.decisions.tolist()) == ([2, 0], [4, 0])
    assert 1 - found.rate == pytest.approx(2 * 1 / (2 + 2))  # F1
    assert found.answers[0].gold == "Ada (PER), Bob (PER)"
    assert found.answers[0].confidence == 0.7


@pytest.mark.parametrize("metrics", [["f1"], ["accuracy"]])
def test_tags_of_another_program_have_no_confidence(tmp_path, metrics):
    predictions = [{"tokens": ["Ada", "met"], "tags": ["B-PER", "O"], "prediction": ["B-LOC", "O"]}]
    recipe = {"task": "token_classification", "metrics": metrics, "best_metric": metrics[0]}
    labels = ["O", "B-PER", "B-LOC"] if metrics == ["f1"] else ["O", "B-PER", "B-LOC", "x"]  # entities, or mere tags
    (answer,) = outcomes_of(tmp_path, predictions, labels, **recipe).answers
    assert answer.confidence is None
    assert (answer.gold, answer.predicted) in (("Ada (PER)", "Ada (LOC)"), ("Ada/B-PER", "Ada/B-LOC"))


def test_answers_are_judged_without_their_spans(tmp_path):
    row = {"question": "Who?", "context": "Ada met Bob", "answers": {"text": ["Ada"], "answer_start": [0]}}
    predictions = [{**row, "prediction": "Ada"}, {**row, "prediction": "Bob", "probability": 0.7}]
    recipe = {"task": "question_answering", "metrics": ["exact_match"], "best_metric": "exact_match"}
    found = outcomes_of(tmp_path, predictions, **recipe)
    assert found.errors.tolist() == [0, 1]
    assert (found.answers[1].gold, found.answers[1].predicted, found.answers[1].confidence) == ("Ada", "Bob", 0.7)


def test_choices_are_judged_by_their_index(tmp_path):
    predictions = [{"context": "", "choices": ["a", "b"], "label": 1, "prediction": n} for n in (0, 1)]
    recipe = {"task": "multiple_choice", "metrics": ["accuracy"], "best_metric": "accuracy"}
    found = outcomes_of(tmp_path, predictions, **recipe)
    assert (found.errors.tolist(), found.answers[0].predicted) == ([1, 0], "a")


def test_numbers_have_the_size_of_their_error(tmp_path):
    predictions = [{"text": "a", "label": 1.0 * n, "prediction": 1.0 * n + (-1) ** n} for n in range(4)]
    recipe = {"task": "text_regression", "metrics": ["pearsonr"], "best_metric": "pearsonr"}
    found = outcomes_of(tmp_path, predictions, **recipe)
    assert found.rate_name == "mean size of the error"
    assert found.errors.tolist() == [1, 1, 1, 1]


def test_queries_are_judged_by_their_score(tmp_path):
    predictions = [
        {"query": f"q{n // 2}", "passage": f"p{n}", "relevance": 1.0 * (n % 2), "prediction": 1.0 * (n in (1, 2))}
        for n in range(4)
    ]
    recipe = {"task": "reranking", "metrics": ["mrr@10"], "best_metric": "mrr@10"}
    found = outcomes_of(tmp_path, predictions, **recipe)
    assert found.rate_name == "1 - mrr@10"
    assert np.allclose(found.errors, [0, 0.5])
    assert found.units == [[0, 1], [2, 3]]


def test_predictions_that_are_not_stored_are_refused(tmp_path):
    recipe = {"task": "contrastive", "metrics": ["mrr@10"], "best_metric": "mrr@10"}
    with pytest.raises(DataError, match="depend on more than the stored predictions"):
        outcomes_of(tmp_path, [{"anchor": "a", "positive": "b", "prediction": 1}], **recipe)


def test_answers_are_sorted():
    answers = [
        RowAnswer("a", "", "x", "y", 1.0, 0.5, 3),
        RowAnswer("b", "", "w", "y", 2.0, None, 9),
        RowAnswer("c", "", "x", "y", 1.0, 0.9, 1),
    ]
    order = {
        sort: "".join(one.id for one in sorted(answers, key=SORTS[sort])) for sort in ("confidence", "length", "label")
    }
    assert order == {"confidence": "cab", "length": "bac", "label": "bca"}
    assert min(answers, key=SORTS["error"]).id == "b"
