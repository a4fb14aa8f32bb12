"""Pairs and triples: rows read, partners found, and what a run leaves."""

from __future__ import annotations

import numpy as np
import pytest

import bertkit
from bertkit.errors import DataError
from bertkit.modeling.sentence.folder import read_modules
from bertkit.recipe import load_recipe
from bertkit.tasks import contrastive as task
from bertkit.tasks import load_task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.finetune import finetune
from bertkit.workflows.predict import predict
from tests.conftest import make_tokenizer, write_jsonl

MARGINS = {"options.loss": "margin_mse"}


def recipe_of(**changes):
    recipe = load_recipe("similarity-triples", {"metrics": list(task.METRICS), **changes})
    load_task(recipe)
    return recipe


def setup_of(**changes) -> TaskContext:
    return TaskContext(recipe_of(**changes), make_tokenizer(), ())


def reading(changes=None, **columns):
    return task.read({"anchor": "a", "positive": "b", **columns}, recipe_of(**(changes or {})))


# --- rows


@pytest.mark.parametrize(
    ("value", "negatives"),
    [("c", ["c"]), (["c", "d"], ["c", "d"]), (["c", "", None], ["c"]), ("", []), (None, []), (("c",), ["c"])],
)
def test_negatives_are_a_list(value, negatives):
    assert reading(negative=value)["negative"] == negatives


def test_margins_are_one_number_per_negative():
    assert reading(MARGINS, negative=["c", "d"], margin=["1.5", 2])["margin"] == [1.5, 2.0]
    assert reading(MARGINS, negative="c", margin="-0.5")["margin"] == [-0.5]


@pytest.mark.parametrize(
    ("changes", "columns", "message"),
    [
        ({}, {"negative": ["", "c"]}, "text 1 of 2 is empty (column 'negative') - fill it in"),
        ({}, {"negative": 3}, "'3' is neither a text nor a list of texts (column 'negative')"),
        ({}, {"anchor": 3}, "3 is not text (column 'anchor')"),
        (MARGINS, {"negative": "c", "margin": "much"}, "margin 'much' is not a number (column 'margin')"),
        (MARGINS, {"negative": "c", "margin": [1, 2]}, "2 margins for 1 negatives (column 'margin')"),
        (MARGINS, {"negative": "c"}, "the loss margin_mse needs a margin in each row"),
        (MARGINS, {"margin": 1.0}, "the loss margin_mse needs a negative in each row"),
    ],
)
def test_rows_that_are_refused(changes, columns, message):
    with pytest.raises(DataError) as caught:
        reading(changes, **columns)
    assert str(caught.value).startswith(message)


def test_texts_are_numbered_for_batches_and_margins_padded():
    rows = [
        {"anchor": "a", "positive": "b", "negative": ["c"], "margin": [1.0]},
        {"anchor": "b", "positive": "a", "negative": ["c", "a"], "margin": [2.0, 3.0]},
    ]
    one, two = (feature["texts"] for feature in task.encode(rows, setup_of()))
    assert (one[0], one[1], one[2]) == (two[1], two[0], two[2])
    context = setup_of(**MARGINS)
    features = task.encode(rows, context)
    assert "texts" not in features[0]
    batch = task.collator(context)(features)
    assert batch["labels"].tolist() == [[1.0, 0.0], [2.0, 3.0]]
    assert batch["input_ids"].shape[:2] == (2, 4)


# --- scores


def test_scores_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 4, 8))
    vectors[:, 1] += 1.5 * vectors[:, 0]
    rows = [{"anchor": f"a{n}", "positive": f"p{n}", "negative": ["x", "y"][: n % 3]} for n in range(40)]
    predictions = task.decode([{"vectors": row} for row in vectors], [], rows, setup_of())
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    ranks, wins = [], []
    for number, row in enumerate(rows):
        cosines = [float(unit[number, 0] @ unit[other, 1]) for other in range(40)]
        ranks.append(sorted(cosines, reverse=True).index(cosines[number]) + 1)
        for_row = [float(unit[number, 0] @ unit[number, 2 + one]) for one in range(len(row["negative"]))]
        wins += [cosines[number] > max(for_row)] if for_row else []
        assert predictions[number]["prediction"] == pytest.approx(cosines[number])
        assert predictions[number].get("negative_scores", []) == pytest.approx(for_row)
    expected = {
        "mrr@10": sum(1 / rank for rank in ranks if rank <= 10) / 40,
        "recall@1": sum(rank == 1 for rank in ranks) / 40,
        "recall@10": sum(rank <= 10 for rank in ranks) / 40,
        "triple_accuracy": sum(wins) / len(wins),
    }
    assert 0.1 < expected["recall@1"] < 0.95
    context = setup_of()
    assert task.score(task.compare(predictions, rows, context), context) == pytest.approx(expected)
    details = task.details(predictions, rows, setup_of(**{"options.dimensions": [8]}))
    assert details.tables["by dimension"][0]["mrr@10"] == pytest.approx(expected["mrr@10"])
    assert [answer.correct for answer in details.answers] == [rank == 1 for rank in ranks]


def test_baselines_guess_and_count_words():
    rows = [{"anchor": f"film {n}", "positive": f"a film {n}", "negative": ["song"]} for n in range(30)]
    context = setup_of()
    found = task.baselines({}, rows, context)
    chance, words = (
        task.score(task.compare(found[name], rows, context), context) for name in ("chance", "shared words")
    )
    assert chance["recall@1"] < 0.3 and 0.2 < chance["triple_accuracy"] < 0.8
    assert words["recall@1"] == words["triple_accuracy"] == 1
    pairs = [{"anchor": "a", "positive": "b"}] * 2
    assert np.isnan(
        task.score(task.compare(task.baselines({}, pairs, context)["chance"], pairs, context), context)[
            "triple_accuracy"
        ]
    )


# --- a run


def test_a_run_keeps_prompts_and_dimensions_and_predicts_with_them(tiny_model, tmp_path):
    rng = np.random.default_rng(0)
    words = np.array(["film", "book", "song", "good", "bad", "dull", "weak", "fine", "so", "very"])
    rows = [{"anchor": " ".join(pick), "positive": " ".join(pick[::-1])} for pick in rng.choice(words, size=(90, 3))]
    write_jsonl(tmp_path / "data" / "train.jsonl", rows[:60])
    write_jsonl(tmp_path / "data" / "validation.jsonl", rows[60:])
    prompts = {"query": "this is: ", "document": "the "}
    changes = {"model": str(tiny_model), "data.source": str(tmp_path / "data"), "training.precision": "fp32"}
    changes |= {"options.prompts": prompts, "options.dimensions": [32, 8], "training.batch_size": 16}
    (result,) = finetune(load_recipe("similarity-pairs", changes), output=tmp_path / "run")
    assert [line["dimension"] for line in result.tables["by dimension"]] == ["32", "8"]
    assert read_modules(tmp_path / "run").prompts == prompts
    row = {"anchor": "a good film", "positive": "film good a"}
    plain = load_recipe("similarity-pairs", {"model": str(tmp_path / "run"), "training.precision": "fp32"})
    (record,) = predict(plain, row=row)
    embedder = bertkit.Embedder(str(tmp_path / "run"), precision="fp32")
    query, document = (
        embedder.with_prompt(name).encode([text])[0] for name, text in zip(prompts, row.values(), strict=True)
    )
    cosine = query @ document / np.linalg.norm(query) / np.linalg.norm(document)
    assert record["prediction"] == pytest.approx(float(cosine), abs=1e-6)


def test_margins_are_learned_as_dot_products(tiny_model):
    context = setup_of(**MARGINS)
    model = task.load_model(tiny_model, context, new_head=True)
    assert (model.sentence.similarity, model.loss.name) == ("dot", "margin_mse")
    vectors = np.arange(24.0).reshape(3, 8)
    row = {"anchor": "a", "positive": "b", "negative": ["c"]}
    (record,) = task.decode([{"vectors": vectors}], [], [row], context)
    assert (record["prediction"], record["negative_scores"]) == (vectors[0] @ vectors[1], [vectors[0] @ vectors[2]])
