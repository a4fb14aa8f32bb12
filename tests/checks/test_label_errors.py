"""Labels that may be wrong, ranked."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from bertkit.checks import label_errors
from bertkit.data.columns import ColumnSpec
from bertkit.data.demo import read_demo_rows
from bertkit.data.rows import Split
from bertkit.errors import UnavailableError
from bertkit.recipe import load_recipe
from bertkit.vectors.embedder import Embedder
from tests.conftest import toy_rows

CLASSES = ColumnSpec(inputs=("text",), gold="label")


class Vectors:
    """An embedder whose vectors tell whether a text has a good word."""

    def __init__(self):
        self.calls = 0

    def describe(self):
        return {"model": "good words"}

    def encode(self, texts):
        self.calls += 1
        good = ("good", "great", "lovely", "fine", "superb")
        return np.array([[sum(word in text for word in good), len(text) % 3] for text in texts], dtype=np.float32)


def split(rows):
    return Split("train", "t.csv", rows, list(range(1, len(rows) + 1)))


def rank(labels, probabilities, **options):
    """Stand in for cleanlab: the rows whose label is not the most probable one, by its probability."""
    given = probabilities[np.arange(len(labels)), labels]
    return np.array([row for row in np.argsort(given) if probabilities[row].argmax() != labels[row]])


def use_ranking(monkeypatch):
    monkeypatch.setattr(label_errors, "import_extra", lambda *_: SimpleNamespace(find_label_issues=rank))


def test_flipped_labels_are_ranked_first(monkeypatch):
    use_ranking(monkeypatch)
    rows = toy_rows(200, seed=5)
    flipped = random.Random(0).sample(range(200), 8)
    for row in flipped:
        rows[row]["label"] = {"good": "bad", "bad": "good"}[rows[row]["label"]]
    embedder = Vectors()
    held_out = Split("validation", "t.csv", rows[150:], list(range(151, 201)))
    splits = {"train": Split("train", "t.csv", rows[:150], list(range(1, 151))), "validation": held_out}
    found = label_errors.find_label_errors(splits, CLASSES, embedder)
    assert {error.row - 1 for error in found.ranked[:8]} == set(flipped)
    assert all(error.suggested != error.label and error.text == rows[error.row - 1]["text"] for error in found.ranked)
    assert (found.finding.level, found.finding.count) == ("warn", len(found.ranked))
    assert found.count.low <= 8 <= found.count.high
    assert f"about {found.count.expected} of 200 labels are wrong" in found.finding.text
    label_errors.find_label_errors(splits, CLASSES, embedder)
    assert embedder.calls == 1  # vectors are kept


@pytest.mark.parametrize("rate", [0.0, 0.03, 0.1])
def test_errors_are_counted_where_the_model_is_sure(rate):
    """Of a model that knows how sure it is, the interval should hold 19 of 20 true numbers."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(40):
        sure = draw.uniform(0.6, 1.0, 2000)
        true = draw.integers(0, 2, 2000)
        predicted = np.where(draw.uniform(size=2000) < np.maximum(sure, (sure > 0.8) * 1.0), true, 1 - true)
        probabilities = np.where(predicted[:, None] == [0, 1], sure[:, None], 1 - sure[:, None])
        wrong = draw.choice(2000, round(rate * 2000), replace=False)
        labels = true.copy()
        labels[wrong] = 1 - labels[wrong]
        counted = label_errors.count_errors(labels, probabilities)
        held += counted.low <= len(wrong) <= counted.high
    assert held >= 34


def test_pairs_have_their_difference_and_product():
    texts = [{"text": "good", "text_pair": "fine good"}, {"text": "bad", "text_pair": "dull"}]
    vectors = label_errors.embed_rows(texts, Vectors())
    assert vectors.tolist() == [[1, 1, 2, 0, 1, 1, 2, 0], [0, 0, 0, 1, 0, 1, 0, 0]]


def test_damaged_vectors_are_computed_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path))
    embedder = Vectors()
    first = label_errors._embed_column(["a", "good"], embedder)
    (file,) = (tmp_path / "vectors").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (bytes(content), content[:40]):
        file.write_bytes(damaged)
        again = label_errors._embed_column(["a", "good"], embedder)
        assert again.tolist() == first.tolist()
    assert embedder.calls == 3


def test_gold_values_that_are_no_labels(monkeypatch):
    use_ranking(monkeypatch)
    for rows in ([{"text": "a", "label": 0.5}] * 9, [{"text": "a", "label": "x"}] * 9):
        assert label_errors.find_label_errors({"train": split(rows)}, CLASSES, Vectors()) is None


def test_cleanlab_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    with pytest.raises(UnavailableError, match="cleanlab"):
        label_errors.find_label_errors({"train": split([])}, CLASSES, Vectors())


@pytest.mark.slow
def test_cleanlab_ranks_the_labels_that_are_least_probable(monkeypatch):
    pytest.importorskip("cleanlab")
    labels = np.array([0, 1] * 50)
    probabilities = np.where(labels[:, None] == [0, 1], 0.9, 0.1)
    probabilities[7], probabilities[20] = (0.99, 0.01), (0.05, 0.95)
    monkeypatch.setattr(label_errors, "predict_labels", lambda texts, vectors, labels: probabilities)
    rows = [{"text": f"text {number}", "label": "ab"[label]} for number, label in enumerate(labels)]
    found = label_errors.find_label_errors({"train": split(rows)}, CLASSES, Vectors())
    assert [error.row for error in found.ranked] == [8, 21]


TAGGED = ColumnSpec(inputs=("tokens",), gold="tags", lists=("tokens", "tags"))


@pytest.fixture
def rows():
    """Rows with names, of which five have a wrong tag, and one word has none."""
    rows = read_demo_rows(load_recipe("ner"), "train", 200)
    names = load_recipe("ner").labels
    rows = [{**row, "tags": [names[tag] if isinstance(tag, int) else tag for tag in row["tags"]]} for row in rows]
    named = [number for number, row in enumerate(rows) if "B-PER" in row["tags"]][:5]
    for number in named:
        rows[number]["tags"][rows[number]["tags"].index("B-PER")] = "B-LOC"
    rows[named[0]]["tags"][-1] = None
    return rows, set(named)


def test_wrong_tags_are_ranked_first_in_every_split(rows, monkeypatch):
    rows, wrong = rows
    use_ranking(monkeypatch)
    splits = {
        "train": Split("train", "t.jsonl", rows[:100], list(range(100))),
        "validation": Split("validation", "t.jsonl", rows[100:], list(range(100, 200))),
    }
    found = label_errors.find_label_errors(splits, TAGGED, Embedder("demo"))
    assert wrong <= {error.row for error in found.ranked[:8]}
    first = found.ranked[0]
    assert (first.label, first.suggested) == ("B-LOC", "B-PER")
    assert first.word in rows[first.row]["tokens"] and first.text == " ".join(rows[first.row]["tokens"])
    assert len({error.row for error in found.ranked}) == len(found.ranked) == found.finding.count
    assert found.count is None


def test_rows_without_two_tags_are_left_out(monkeypatch):
    use_ranking(monkeypatch)
    same = [{"tokens": ["a"], "tags": ["O"]}] * 9
    splits = {"train": Split("train", "t.jsonl", same, list(range(9)))}
    assert label_errors.find_label_errors(splits, TAGGED, Embedder("demo")) is None


def test_neighbors_are_those_of_the_row():
    values, row_of = np.arange(1.0, 6.0)[:, None], np.array([0, 0, 1, 1, 1])
    assert label_errors._shift_values(values, row_of, -1)[:, 0].tolist() == [0, 1, 0, 3, 4]
    assert label_errors._shift_values(values, row_of, 1)[:, 0].tolist() == [2, 0, 4, 5, 0]


def test_cleanlab_for_tags_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    with pytest.raises(UnavailableError, match="cleanlab"):
        label_errors.find_label_errors({}, TAGGED, Embedder("demo"))
