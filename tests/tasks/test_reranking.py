"""Passages ranked for queries: rows, lists, scores over queries, baselines, and a run from end to end."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertkit.errors import DataError, RecipeError
from bertkit.evaluation.scoring import EvalOutput, find_intervals
from bertkit.recipe import load_recipe
from bertkit.tasks import TaskContext
from bertkit.tasks import reranking as task
from bertkit.vectors.reranker import Reranker
from bertkit.workflows.finetune import finetune
from tests.conftest import make_tokenizer, write_jsonl

NAMES = ["cat", "dog", "bird", "man", "hat"]


def setup_of(loss: str = "pointwise", **changes) -> TaskContext:
    return TaskContext(load_recipe("rerank", {"options.loss": loss, **changes}), make_tokenizer(), ())


def rows_of(*relevance: list[float]) -> list[dict]:
    """Make rows of one query per list; those of all queries take turns."""
    longest = max(map(len, relevance))
    return [
        {"query": f"q{query}", "passage": f"p{number} of {query}", "relevance": float(values[number])}
        for number in range(longest)
        for query, values in enumerate(relevance)
        if number < len(values)
    ]


def toy_rows(queries: int, seed: int) -> list[dict]:
    """Make rows of a query, a word, and four passages, one of which has it."""
    rng = random.Random(seed)
    rows = []
    for number in range(queries):
        words = rng.sample(NAMES, 4)
        query = f"{rng.choice(words)} {number}"
        fillers = ["the old", "a red", "in the garden"]
        rows += [
            {"query": query, "passage": f"{rng.choice(fillers)} {word}", "relevance": int(query.startswith(word))}
            for word in words
        ]
    return rows


@pytest.mark.parametrize(("relevance", "number"), [("1", 1.0), (True, 1.0), (0.25, 0.25), (0, 0.0)])
def test_a_relevance_is_read_as_a_number(relevance, number):
    row = {"query": "a", "passage": "b", "relevance": relevance}
    assert task.read(row, load_recipe("rerank"))["relevance"] == number


@pytest.mark.parametrize(
    ("relevance", "message"),
    [
        ("yes", "relevance 'yes' is not a number (column 'relevance') - give a number, 0 for a passage"),
        (None, "no label (column 'relevance') - fill it in, or --set data.empty_label=drop"),
        (-1, "relevance -1 is below 0"),
        (
            3,
            "relevance 3 is above 1 (column 'relevance') - correct it, or extend the range: --set 'data.label_range",
        ),
    ],
)
def test_anything_else_is_refused(relevance, message):
    with pytest.raises(DataError, match=re.escape(message)):
        task.read({"query": "a", "passage": "b", "relevance": relevance}, load_recipe("rerank"))


def test_graded_relevance_is_a_share_of_the_highest():
    context = setup_of(**{"data.label_range": [0, 3]})
    rows = [task.read(row, context.recipe) for row in rows_of([3, 0, 1.5])]
    batch = task.collator(context)(task.encode(rows, context))
    assert batch["labels"].tolist() == [[1.0], [0.0], [0.5]]


def test_a_range_of_relevance_begins_at_0():
    recipe = load_recipe("rerank", {"data.label_range": [-1, 0]})
    with pytest.raises(RecipeError, match="starts at -1 - start it at 0"):
        task.read({"query": "a", "passage": "b", "relevance": 0}, recipe)


def test_a_list_has_the_passages_of_one_query_wherever_they_are():
    context = setup_of("listwise")
    rows = rows_of([0, 1, 0], [1, 0])
    single, lists = task.encode(rows, setup_of()), task.encode(rows, context)
    assert [feature["labels"] for feature in lists] == [[0, 1, 0], [1, 0]]
    assert lists[0]["input_ids"] == [single[number]["input_ids"] for number in (0, 2, 4)]
    batch = task.collator(context)(lists)
    assert batch["input_ids"].shape[:2] == (2, 3) == batch["labels"].shape
    assert batch["attention_mask"][1, 2].sum() == 1 and batch["labels"][1].tolist() == [1, 0, 0]
    outputs = [{"logits": np.array([1, 3, 5], np.float32)}, {"logits": np.array([2, 4, -9e9], np.float32)}]
    assert [record["prediction"] for record in task.decode(outputs, lists, rows, context)] == [1, 2, 3, 4, 5]


def test_rows_to_predict_are_no_lists():
    rows = [{"query": "a", "passage": "b"}, {"query": "a", "passage": "c"}]
    features = task.encode(rows, setup_of("listwise"))
    assert len(features) == 2 and "labels" not in features[0]


def test_probabilities_near_1_still_differ():
    outputs = [{"logits": np.array([logit], np.float32), "probabilities": np.ones(1)} for logit in (20, 21, -800)]
    rows = [{"query": "a", "passage": "b"}] * 3
    one, other, none = (
        record["prediction"] for record in task.decode(outputs, task.encode(rows, setup_of()), rows, setup_of())
    )
    assert none == 0 < one < other < 1


def test_scores_are_those_of_scikit_learn_query_by_query():
    rng = np.random.default_rng(0)
    relevance = rng.integers(0, 3, (20, 8))
    relevance[:, 0] = 1
    scores = rng.normal(size=(20, 8))
    context = setup_of()
    rows = rows_of(*relevance.tolist())
    predictions = [{"prediction": scores[int(row["query"][1:]), int(row["passage"][1])]} for row in rows]
    row_scores = task.compare(predictions, rows, context)
    assert row_scores["ndcg@10"] == pytest.approx(
        [ndcg_score(*pair, k=10) for pair in zip(relevance[:, None], scores[:, None], strict=True)]
    )
    found = task.score(row_scores, context)
    assert found["map"] == pytest.approx(
        np.mean([average_precision_score(gold > 0, of_query) for gold, of_query in zip(relevance, scores, strict=True)])
    )
    ranked = [gold[np.argsort(-of_query)] for gold, of_query in zip(relevance, scores, strict=True)]
    assert found["mrr@10"] == pytest.approx(np.mean([1 / (1 + np.flatnonzero(gold)[0]) for gold in ranked]))


def test_intervals_are_over_queries_and_not_over_rows():
    # one relevant passage of ten in each of 16 queries: first in half of them, last in the others
    context, rows = setup_of(), rows_of(*[[1] + [0] * 9] * 16)
    predictions = [{"prediction": (1.0 if int(row["query"][1:]) % 2 else -1.0) * row["relevance"]} for row in rows]
    row_scores = task.compare(predictions, rows, context)
    scores = task.score(row_scores, context)
    low, high = find_intervals(task, EvalOutput(predictions, [], row_scores, scores, None, context)).bounds["mrr@10"]
    assert scores["mrr@10"] == pytest.approx(0.55)
    error = row_scores["mrr@10"].std() / 4  # of a mean over 16 queries
    assert high - low == pytest.approx(2 * 2.13 * error, rel=0.2)


def test_equal_scores_count_against_a_model_and_queries_without_relevant_passages_not_at_all():
    context, rows = setup_of(), rows_of([1, 0, 0], [0, 0])
    predictions = [{"prediction": 0.5}] * len(rows)
    assert task.compare(predictions, rows, context)["mrr@10"].tolist() == [pytest.approx(1 / 3)]
    details = task.details(predictions, rows, context)
    assert details.warnings == ["1 of 2 queries have no relevant passage and are not scored."]
    with pytest.raises(DataError, match="no query has a relevant passage"):
        task.compare(predictions[:2], rows_of([0, 0]), context)


def test_baselines_rank_by_shared_words_and_by_the_given_order_unless_it_is_that_of_relevance():
    context, rows = setup_of(), toy_rows(30, seed=3)
    state = task.fit_baselines(rows, context)
    predicted = task.baselines(state, rows, context)
    assert list(predicted) == ["random order", "order of the rows", "shared words", "passages alone"]
    scored = {name: task.score(task.compare(records, rows, context), context) for name, records in predicted.items()}
    assert scored["shared words"]["map"] == 1 and scored["random order"]["map"] < 0.8
    first = sorted(rows, key=lambda row: -row["relevance"])
    assert "order of the rows" not in task.baselines(state, first, context)


@pytest.mark.parametrize(("loss", "relevance"), [("pointwise", [[1, 1], [1]]), ("listwise", [[1, 1], [0, 0], [1]])])
def test_rows_that_teach_nothing_are_refused(loss, relevance):
    with pytest.raises(DataError, match=r"same relevance.* give passages that are not relevant"):
        task.fit_baselines(rows_of(*relevance), setup_of(loss))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows") / "data"
    write_jsonl(folder / "train.jsonl", toy_rows(24, seed=1))
    write_jsonl(folder / "validation.jsonl", toy_rows(12, seed=2))
    return folder


@pytest.fixture(scope="module", params=["pointwise", "listwise"])
def ranker(request, data, tiny_model):
    """A run folder of each loss, trained for a few steps."""
    changes = {"model": str(tiny_model), "data.source": str(data), "options.loss": request.param}
    changes |= {"training.epochs": 1, "training.batch_size": 8, "training.precision": "fp32", "training.max_length": 32}
    folder = data.parent / request.param
    finetune(load_recipe("rerank", changes), output=folder)
    return folder


def test_a_run_is_a_cross_encoder_and_eval_repeats_its_scores(run, ranker, data):

    recipe, record = ranker / "recipe.yaml", json.loads((ranker / "run.json").read_text())
    ended = run("eval", recipe, "--model", ranker, "--data", data, "--json")
    assert ended.code == 0, ended.err
    (result,) = json.loads(ended.out)["results"]
    assert result["scores"] == pytest.approx(record["results"][0]["scores"], abs=1e-9)
    assert set(result["baselines"]) >= {"random order", "shared words"}


def test_predictions_are_the_scores_of_a_plain_forward_pass(run, ranker, tmp_path):
    rows = [*toy_rows(2, seed=4), {"query": "cat", "passage": "the old man " * 40, "relevance": 0}]
    write_jsonl(tmp_path / "new.jsonl", rows)
    ended = run("predict", "rerank", tmp_path / "new.jsonl", "--model", ranker, "--set", "training.precision=fp32")
    assert ended.code == 0, ended.err
    scores = [json.loads(line)["prediction"] for line in ended.out.splitlines()]
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(ranker), AutoTokenizer.from_pretrained(ranker)
    assert (model.config.id2label, tokenizer.model_max_length) == ({0: "LABEL_0"}, 32)
    pairs = [(row["query"], row["passage"]) for row in rows]
    with torch.no_grad():
        logits = [
            model.eval()(**tokenizer(*pair, return_tensors="pt", truncation=True)).logits.item() for pair in pairs
        ]
    expected = 1 / (1 + np.exp(-np.array(logits))) if ranker.name == "pointwise" else logits
    assert scores == pytest.approx(list(expected), abs=1e-6)
    np.testing.assert_allclose(Reranker(str(ranker), precision="fp32").score(pairs), scores, atol=1e-6)


@pytest.mark.slow
def test_the_cross_encoder_of_sentence_transformers_computes_equal_scores(ranker):
    from sentence_transformers import CrossEncoder

    pairs = [(row["query"], row["passage"]) for row in toy_rows(5, seed=5)] + [("cat", "the old man " * 30)]
    scores = CrossEncoder(str(ranker), device="cpu").predict(pairs)
    np.testing.assert_allclose(Reranker(str(ranker), precision="fp32").score(pairs), scores, atol=1e-6)
