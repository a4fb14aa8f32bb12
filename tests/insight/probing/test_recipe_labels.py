"""The labels of recipes, as items of texts, pairs, words and words in texts."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import RecipeError
from bertkit.insight.probing.recipe_labels import choose_metric, read_recipe_task
from bertkit.recipe import load_recipe


def read(name, **changes):
    settings = {"data.source": "demo", "data.limit": 30, **changes}
    return read_recipe_task(load_recipe(name, settings), 40)


def test_words_have_their_tags():
    task = read("pos")
    items = task.train
    assert items.unit == "word" and task.control == "types" and task.metric == "accuracy"
    for (row, word), group in zip(items.addresses[:, 0].tolist(), items.groups, strict=True):
        assert items.rows[row]["tokens"][word].lower() == group
    assert len(items) == sum(len(row["tokens"]) for row in items.rows)
    np.testing.assert_array_equal(items.owners, items.addresses[:, 0, 0])


def test_targets_have_their_senses():
    task = read("wsd")
    assert task.train.unit == "target" and task.metric == "f1_macro" and task.control == "shuffled"
    assert all(label.startswith(f"{word}/") for label, word in zip(task.train.labels, task.train.groups, strict=True))
    assert [row["target"] for row in task.train.rows] == task.train.addresses[:, 0, 1].tolist()


def test_texts_pairs_and_similar_texts():
    assert read("cola").train.unit == "text" and read("cola").metric == "matthews_correlation"
    assert set(read("cola").train.labels) == {"unacceptable", "acceptable"}
    pairs = read("mrpc")
    assert pairs.train.unit == "pair" and set(pairs.train.rows[0]) == {"text", "text_pair"}
    similar = read("stsb")
    count = len(similar.train)
    assert similar.is_regression and similar.metric == "spearmanr" and similar.train.combination == "difference"
    assert similar.train.addresses[1].tolist() == [[1, 0], [count + 1, 0]] and len(similar.train.rows) == 2 * count


@pytest.mark.parametrize("name", ["squad", "choose", "rerank", "similarity-triples"])
def test_other_families_are_refused(name):
    with pytest.raises(RecipeError, match=r"is of the family .*, and probes read one label"):
        read(name)
    with pytest.raises(RecipeError, match="has several labels per row"):
        read("classify", **{"options.multi_label": True})


def test_metrics():
    assert choose_metric(None, ["f1", "f1_macro"], is_regression=False) == "f1_macro"
    assert choose_metric(None, ["f1", "precision"], is_regression=False) == "accuracy"
    assert choose_metric("r2", ["spearmanr"], is_regression=True) == "r2"
    with pytest.raises(RecipeError, match="--metric f1 is none of this task"):
        choose_metric("f1", ["f1"], is_regression=False)
