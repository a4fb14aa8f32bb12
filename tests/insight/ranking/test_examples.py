"""Which rows of each task family are read, and as what."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.data.rows import Split
from bertkit.errors import DataError, UsageError
from bertkit.insight.layer_vectors import LayerReader
from bertkit.insight.ranking.examples import LayerFeatures, choose_examples, read_features
from bertkit.insight.ranking.layers import pool_layers
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task


def choose(name, rows, most=100):
    return choose_examples(load_task(load_recipe(name)), Split("train", "rows.csv", rows, list(range(len(rows)))), most)


def test_texts_are_evenly_spaced_and_their_labels_numbered():
    rows = [{"text": f"text {number}", "label": "ab"[number // 50]} for number in range(100)]
    examples = choose("classify", rows, 50)
    assert (examples.unit, examples.classes) == ("text", 2)
    assert examples.gold.tolist() == [0] * 25 + [1] * 25
    assert examples.origin.tolist() == list(range(0, 100, 2))
    assert choose("mrpc", [{**row, "text_pair": "b"} for row in rows]).unit == "pair"
    scored = [{"text": "a", "text_pair": "b", "label": float(number)} for number in range(40)]
    assert choose("stsb", scored).unit == "pair" and choose("similarity", scored).unit == "two texts"
    assert choose("stsb", scored).classes is None


def test_a_word_is_drawn_from_each_sentence_and_more_where_these_are_few():
    rows = [{"tokens": ["a", "\u200b", "b", "c", "d"], "tags": ["X", "Y", None, "Y", "X"]}] * 40
    examples = choose("tag", rows, 40)
    assert (examples.unit, len(examples.rows)) == ("word", 40)
    assert {row["target"] for row in examples.rows} == {0, 3, 4}  # neither without a tag nor invisible
    tags = ["X" if row["target"] in (0, 4) else "Y" for row in examples.rows]
    assert examples.gold.tolist() == [int(tag == "Y") for tag in tags]
    assert len(choose("tag", rows, 80).rows) == 80
    more = choose("tag", rows, 400)
    assert len(more.rows) == 120 and more.origin[:4].tolist() == [0, 0, 0, 1]


def test_senses_are_told_apart_word_by_word():
    rows = []
    for word, senses in (("bank", ["river"] * 20 + ["money"] * 20), ("cell", ["one"] * 30), ("bat", ["a", "b", "b"])):
        rows += [{"tokens": ["the", word], "target": 1, "word": word, "sense": f"{word}/{one}"} for one in senses]
    rows.insert(7, {"tokens": ["a", "bank"], "target": 1, "word": "bank", "sense": "bank/rare"})
    examples = choose("wsd", rows)
    assert {row["word"] for row in examples.rows} == {"bank"} and len(examples.gold) == 40
    assert [group.tolist() for group in examples.groups] == [list(range(40))]
    assert examples.classes == 2

    two = choose("wsd", rows + [{**row, "word": "x", "sense": "x" + row["sense"]} for row in rows[:30]])
    sizes = [len(group) for group in two.groups]
    assert two.score(len, np.ones(len(two.gold), dtype=bool)) == np.average(sizes, weights=sizes)


def test_rows_that_cannot_be_ranked_are_refused():
    rows = [{"text": "a", "label": "x"}] * 40
    for name, given, error, message in (
        ("classify", rows[:20], DataError, "20 examples are too few"),
        ("classify", rows, DataError, "the same gold value"),
        ("classify", [{"text": "a", "label": ["x", "y"]}] * 40, UsageError, "several labels"),
        ("qa", [{"question": "a", "context": "b"}] * 40, UsageError, "no gold value per text"),
        ("rerank", [{"query": "a", "passage": "b"}] * 40, UsageError, "tells senses apart"),
        ("similarity-texts", [{"text": "a"}] * 40, UsageError, "no gold value per text"),
    ):
        with pytest.raises(error) as raised:
            choose(name, given)
        assert message in str(raised.value)


def test_features_are_vectors_or_what_two_of_them_have_in_common(tiny_model):
    reader = LayerReader(str(tiny_model), precision="fp32")
    rows = [
        {"text": f"good {'film ' * number}", "text_pair": "a bad song", "label": float(number)} for number in range(30)
    ]
    found = read_features(reader, choose("similarity", rows))
    sides = [
        reader.read([{"text": row[name]} for row in rows], "text").vectors[:, -1] for name in ("text", "text_pair")
    ]
    assert found.layers == 2
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    expected = np.concatenate([np.abs(unit[0] - unit[1]), unit[0] * unit[1]], axis=1)
    np.testing.assert_allclose(found.pooled(pool_layers("last")), expected, atol=1e-6)
    # the products add up to the cosine
    cosine = (sides[0][3] @ sides[1][3]) / (np.linalg.norm(sides[0][3]) * np.linalg.norm(sides[1][3]))
    assert found.pooled(pool_layers("last"))[3, 32:].sum() == pytest.approx(cosine, abs=1e-5)
    words = read_features(reader, choose("tag", [{"tokens": ["good", "film"], "tags": ["A", "B"]}] * 30))
    assert words.pooled(pool_layers("mean")).shape == (60, 32)
    assert LayerFeatures([np.zeros((2, 4, 3))]).layers == 3
