"""Late interaction of pairs: decoded and ranked as by plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import ModelError
from bertkit.recipe import load_recipe
from bertkit.tasks import late_interaction as task
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext
from tests.conftest import make_tokenizer


def setup_of(**changes) -> TaskContext:
    changes = {"metrics": list(task.METRICS), "data.columns.negative": "negative", **changes}
    recipe = load_recipe("late-interaction", changes)
    load_task(recipe)
    return TaskContext(recipe, make_tokenizer(), ())


def score_by_loop(query, document) -> float:
    return sum(max(float(one @ other) for other in document) for one in query)


def test_scores_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 3, 5, 8)).astype(np.float32)
    lengths = rng.integers(1, 6, size=(30, 3))
    vectors[:, 1] += 0.9 * vectors[:, 0]
    vectors[np.arange(5) >= lengths[..., None]] = 0  # padding
    real = [[vectors[row, text, : lengths[row, text]] for text in range(3)] for row in range(30)]
    rows = [{"anchor": f"a{n}", "positive": f"p{n}", "negative": ["x"][: n % 2]} for n in range(30)]
    context = setup_of()
    predictions = task.decode([{"vectors": row} for row in vectors], [], rows, context)
    ranks, wins = [], []
    for number, (query, positive, negative) in enumerate(real):
        scores = [score_by_loop(query, other[1]) for other in real]
        ranks.append(sorted(scores, reverse=True).index(scores[number]) + 1)
        assert predictions[number]["prediction"] == pytest.approx(score_by_loop(query, positive), rel=1e-5)
        if number % 2:
            wins.append(scores[number] > score_by_loop(query, negative))
            assert predictions[number]["negative_scores"] == pytest.approx([score_by_loop(query, negative)], rel=1e-5)
    expected = {
        "mrr@10": sum(1 / rank for rank in ranks if rank <= 10) / 30,
        "recall@1": sum(rank == 1 for rank in ranks) / 30,
        "recall@10": sum(rank <= 10 for rank in ranks) / 30,
        "triple_accuracy": sum(wins) / len(wins),
    }
    assert 0.1 < expected["recall@1"] < 0.95
    assert task.score(task.compare(predictions, rows, context), context) == pytest.approx(expected)
    assert [answer.gold for answer in task.details(predictions, rows, context).answers] == ["1"] * 30
    chance = task.baselines({}, rows, context)["chance"]
    assert task.score(task.compare(chance, rows, context), context)["recall@1"] < 0.5


def test_options_reach_the_model_and_other_models_are_refused(tiny_model):
    options = {"options.dimension": 16, "options.scale": 3, "options.mini_batch": 4}
    model = task.load_model(tiny_model, setup_of(**options), new_head=True)
    assert (model.projection.out_features, model.loss.scale, model.texts_at_once) == (16, 3.0, 4)
    with pytest.raises(ModelError, match="the model was not trained for sentence vectors"):
        task.load_model(tiny_model, setup_of(), new_head=False)
