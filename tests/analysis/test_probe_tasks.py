"""Tasks of probes: from recipes, and from the rows themselves."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from bertkit.analysis.probe_tasks import (
    BUILT_IN,
    choose_metric,
    choose_rows,
    read_built_in_task,
    read_recipe_task,
)
from bertkit.data.rows import Split
from bertkit.errors import DataError, RecipeError
from bertkit.recipe import load_recipe
from tests.analysis.made_up_items import make_task
from tests.conftest import write_jsonl

WORDS = [f"word{number}" for number in "abc"] + [chr(97 + number) * 3 for number in range(26)]
TREE = {
    "tokens": ["The", "dog", "chased", "a", "black", "cat"],
    "head": [2, 3, 0, 6, 6, 3],
    "deprel": ["det", "nsubj", "root", "det", "amod", "obj:x"],
}


@pytest.fixture
def make(tmp_path):
    """Make a built-in task of 200 rows with random words, whose trees are chains."""

    def make_built_in(name, limit=1000, **changes):
        draws = random.Random(0)
        rows = []
        for _ in range(200):
            words = [draws.choice(WORDS) for _ in range(draws.randint(1, 12))]
            heads = [0, *range(1, len(words))]
            rows.append({"tokens": words, "head": heads, "deprel": ["root"] + ["dep"] * (len(words) - 1)})
        rows = [{key: changes.get(key, value) for key, value in row.items()} for row in rows]
        file = write_jsonl(tmp_path / "rows.jsonl", rows)
        return read_built_in_task(name, load_recipe("tag", {"data.source": str(file)}), limit)

    return make_built_in


def test_lengths_are_in_bins_of_training_rows(make):
    task = make("length")
    for items in (task.train, task.test):
        for row, label in zip(items.rows, items.labels, strict=True):
            first, _, last = label.partition(" to ")
            assert int(first) <= len(row["text"].split()) <= int(last or first)
    assert 4 <= len(set(task.train.labels)) <= 6
    assert len(task.train) + len(task.test) == 200 or task.notes


def test_one_of_two_texts_has_two_neighbors_swapped(make):
    task = make("shift")
    given = {row["text"] for row in make("length").train.rows}
    labels = task.train.labels
    assert abs(labels.count("swapped") - labels.count("original")) <= 1
    for row, label in zip(task.train.rows, labels, strict=True):
        assert (row["text"] in given) == (label == "original")


def test_depths_stand_beside_lengths(make):
    task = make("depth")
    assert task.group_name == "length" and task.train.groups == task.train.labels  # each tree is a chain


def test_relations_are_those_of_words_to_their_heads(make):
    items = BUILT_IN["relations"].make([TREE], [], 0)
    assert items.labels == ["det", "nsubj", "det", "amod", "obj"]
    assert items.addresses[-1].tolist() == [[0, 5], [0, 2]] and items.groups[-1] == "cat"
    assert items.combination == "edge" and items.rows == [{"tokens": TREE["tokens"]}]
    with pytest.raises(DataError, match="one label, dep"):
        make("relations").check()


def test_tenses_are_those_of_conllu(tmp_path):
    row = {"tokens": ["a", "b", "Went"], "feats": ["Number=Sing|Person=3", "_", "Tense=Past"]}
    rows = [{**row, "tokens": [f"a{number}", "b", "Went"]} for number in range(30)]
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    items = read_built_in_task("tense", load_recipe("tag", {"data.source": str(file)}), 20).train
    assert set(items.labels) == {"Past"} and set(items.groups) == {"went"}
    assert items.addresses[:2].tolist() == [[[0, 2]], [[1, 2]]]


def test_what_rows_lack_is_named(make):
    with pytest.raises(DataError, match="no column 'feats'; there are"):
        make("tense")
    with pytest.raises(DataError, match=r"the heads form a cycle|words but 2 values"):
        make("depth", head=[2, 1])
    with pytest.raises(DataError, match="is not a list"):
        make("length", tokens=None)


def test_a_limit_holds_for_training_and_half_of_it_for_held_out_rows(make):
    task = make("length", limit=30)
    assert len(task.train) == 30 and len(task.test) == 15


# --- Labels of recipes ---


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
    with pytest.raises(RecipeError, match=r"belongs to the family .*, but probes need one label"):
        read(name)
    with pytest.raises(RecipeError, match="has several labels per row"):
        read("classify", **{"options.multi_label": True})


def test_metrics():
    assert choose_metric(None, ["f1", "f1_macro"], is_regression=False) == "f1_macro"
    assert choose_metric(None, ["f1", "precision"], is_regression=False) == "accuracy"
    assert choose_metric("r2", ["spearmanr"], is_regression=True) == "r2"
    with pytest.raises(RecipeError, match="--metric f1 does not apply to this task"):
        choose_metric("f1", ["f1"], is_regression=False)


# --- Rows and items ---


def split(name, texts):
    return Split(name, f"{name}.csv", [{"text": text, "label": "a"} for text in texts], list(range(len(texts))))


def test_rows_are_drawn_by_content_and_kept_apart():
    splits = {"train": split("train", [f"t{number}" for number in range(40)])}
    splits["validation"] = split("validation", ["t3", "v1", "v2", "t5"])
    train, held_out, notes = choose_rows(splits, 100)
    assert {row["text"] for row in train} == {f"t{number}" for number in range(40)} - {"t3", "t5"}
    assert [row["text"] for row in held_out] == ["t3", "v1", "v2", "t5"]
    assert notes == ["training rows left out, because their text is also held out: 2"]
    few, half, _ = choose_rows(splits, 4)
    assert len(few) == 4 and len(half) == 2
    backwards = {name: split(name, [row["text"] for row in one.rows][::-1]) for name, one in splits.items()}
    assert {row["text"] for row in choose_rows(backwards, 4)[0]} == {row["text"] for row in few}


def test_both_splits_are_needed():
    with pytest.raises(DataError, match="there is train"):
        choose_rows({"train": split("train", ["a"])}, 4)


def test_too_little_is_refused():
    task = make_task(train=12, test=4)[0]
    task.check()
    with pytest.raises(DataError, match="the training rows have one label, a -"):
        replace(task, train=replace(task.train, labels=["a"] * 12)).check()
    with pytest.raises(DataError, match="1 held-out rows with a label, of at least 2"):
        replace(task, test=task.test.select(np.array([0]))).check()
    with pytest.raises(DataError, match="the training rows have no label"):
        replace(task, train=task.train.select(np.array([], dtype=int))).check()
