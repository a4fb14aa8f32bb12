"""Sparse vectors of pairs: decoded, ranked and counted as by plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import ModelError, RecipeError
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from bertkit.tasks import sparse as task
from bertkit.tokens.features import TaskContext
from tests.conftest import make_tokenizer


def setup_of(**changes) -> TaskContext:
    recipe = load_recipe("sparse", {"metrics": list(task.METRICS), "data.columns.negative": "negative", **changes})
    load_task(recipe)
    return TaskContext(recipe, make_tokenizer(), ())


def as_output(vectors):
    """Return dense vectors (texts, words) as the model does: the highest values first, and the words that have them."""
    tokens = np.argsort(-vectors, axis=1)[:, : int((vectors > 0).sum(axis=1).max())]
    return {"values": np.take_along_axis(vectors, tokens, axis=1), "tokens": tokens.astype(np.float32)}


def test_scores_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    vectors = (rng.random((40, 4, 30)) * (rng.random((40, 4, 30)) > 0.7)).astype(np.float32)
    vectors[:, 1] += 0.6 * vectors[:, 0]
    rows = [{"anchor": f"a{n}", "positive": f"p{n}", "negative": ["x", "y"][: n % 3]} for n in range(40)]
    context = setup_of()
    predictions = task.decode([as_output(row) for row in vectors], [], rows, context)
    ranks, wins = [], []
    for number, row in enumerate(rows):
        products = [float(vectors[number, 0] @ vectors[other, 1]) for other in range(40)]
        ranks.append(sorted(products, reverse=True).index(products[number]) + 1)
        for_row = [float(vectors[number, 0] @ vectors[number, 2 + one]) for one in range(len(row["negative"]))]
        wins += [products[number] > max(for_row)] if for_row else []
        assert predictions[number]["prediction"] == pytest.approx(products[number], rel=1e-5)
        assert predictions[number].get("negative_scores", []) == pytest.approx(for_row, rel=1e-5)
        assert predictions[number]["query_active_dims"] == (vectors[number, 0] > 0).sum()
    expected = {
        "mrr@10": sum(1 / rank for rank in ranks if rank <= 10) / 40,
        "recall@1": sum(rank == 1 for rank in ranks) / 40,
        "recall@10": sum(rank <= 10 for rank in ranks) / 40,
        "triple_accuracy": sum(wins) / len(wins),
        "query_active_dims": (vectors[:, 0] > 0).sum() / 40,
        "document_active_dims": (vectors[:, 1] > 0).sum() / 40,
    }
    assert 0.1 < expected["recall@1"] < 0.95
    assert task.score(task.compare(predictions, rows, context), context) == pytest.approx(expected)
    answers = task.details(predictions, rows, context).answers
    assert [answer.correct for answer in answers] == [rank == 1 for rank in ranks]
    chance = task.baselines({}, rows, context)["chance"]
    assert np.isnan(task.score(task.compare(chance, rows, context), context)["query_active_dims"])


def test_tokens_of_queries_weigh_as_in_bm25(tiny_model):
    context = setup_of(**{"options.inference_free": True})
    model = task.load_model(tiny_model, context, new_head=True)
    assert model.loss.query_weight == 0
    rows = [{"anchor": "so", "positive": text} for text in ("a good film", "good good", "bad", "a song")]
    assert task.precompute(model, {"train": task.encode(rows, context)}, context, None) is False
    for word, count in (("good", 2), ("bad", 1), ("so", 0)):
        token = context.tokenizer.convert_tokens_to_ids(word)
        assert model.query_table[token].item() == pytest.approx(np.log(1 + (4 - count + 0.5) / (count + 0.5)))
    assert model.query_table[context.tokenizer.cls_token_id] == 0


def test_a_model_that_makes_no_sparse_vectors_is_refused(tiny_model):
    with pytest.raises(ModelError, match="the model was not trained for sentence vectors"):
        task.load_model(tiny_model, setup_of(), new_head=False)
    with pytest.raises(RecipeError, match="warmup"):
        setup_of(**{"options.warmup": 2})


def test_an_encoder_without_a_head_for_masked_tokens_is_named(tiny_model, caplog):
    caplog.set_level("INFO", "bertkit")
    context = setup_of(**{"options.query_weight": 0.5, "options.mini_batch": 4})
    model = task.load_model(tiny_model, context, new_head=True)
    assert "the model has no masked-language-model head" in caplog.text
    assert (model.loss.query_weight, model.loss.document_weight, model.texts_at_once) == (0.5, 3e-5, 4)
