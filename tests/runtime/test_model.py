"""Rows are dealt out to a graph that reads texts, and put together as the models of torch put them together."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.runtime.model import ExportedModel, open_exported
from tests.runtime.hand_made import make_export, write_exported

LEAST = np.finfo(np.float32).min


def count_tokens(texts):
    """Stand in for a graph: two numbers per text, its tokens and its first id."""
    counts = texts["attention_mask"].sum(axis=1).astype(np.float32)
    return {"logits": np.stack([counts, texts["input_ids"][:, 0].astype(np.float32)], axis=1)}


def batch(*rows):
    """Rows of texts (rows, texts, tokens) with so many tokens each; a text of one token is none."""
    texts, tokens = max(map(len, rows)), max(map(max, rows))
    ids, mask = np.zeros((2, len(rows), texts, tokens), dtype=np.int64)
    for row, lengths in enumerate(rows):
        for text in range(texts):
            length = lengths[text] if text < len(lengths) else 1
            ids[row, text, :length], mask[row, text, :length] = 10 * row + text + 1, 1
    return {"input_ids": ids, "attention_mask": mask}


def run(reads, graph, *rows, **changes):
    return ExportedModel(make_export(reads=reads, **changes), graph)(batch(*rows))


def test_windows_that_a_row_lacks_are_not_a_number():
    found = run("text", count_tokens, [5], [3, 4])
    np.testing.assert_array_equal(found["logits"], [[[5, 1], [np.nan, np.nan]], [[3, 11], [4, 12]]])
    assert found["windows"].tolist() == [1, 2]


@pytest.mark.parametrize("reads", ["choices", "passages"])
def test_choices_that_a_row_lacks_have_the_least_logit(reads):
    found = run(reads, count_tokens, [5, 2, 3], [3, 4], probabilities=reads == "passages")
    assert found["logits"].tolist() == [[5, 2, 3], [3, 4, LEAST]]
    if reads == "passages":
        np.testing.assert_allclose(found["probabilities"][1], [1 / (1 + np.exp(-3)), 1 / (1 + np.exp(-4)), 0])


@pytest.mark.parametrize("name", ["sentence_embedding", "token_embeddings", "vectors"])  # the last, of earlier exports
def test_each_text_has_its_vector(name):
    found = run("texts", lambda texts: {name: count_tokens(texts)["logits"]}, [5, 2], [3])
    assert found["vectors"].tolist() == [[[5, 1], [2, 2]], [[3, 11], [0, 0]]]


def test_of_the_vocabulary_only_what_is_not_zero_is_kept():
    def graph(texts):
        return {"vectors": np.array([[0, 2, 0, 3], [1, 0, 0, 0]], dtype=np.float32)}

    found = run("sparse", graph, [3], [4])
    assert found["values"].tolist() == [[[3, 2]], [[1, 0]]]
    assert found["tokens"][:, 0, 0].tolist() == [3, 0]


def test_texts_that_rows_lack_are_not_computed_nor_their_padding():
    seen = []

    def graph(texts):
        seen.append(texts["input_ids"].shape)
        return count_tokens(texts)

    run("choices", graph, [5, 2, 3], [3, 4])
    assert seen == [(5, 5)]


def test_a_folder_computes_what_its_graph_says(tmp_path):
    table = write_exported(tmp_path / "model", ("bad", "good"))
    model = open_exported(tmp_path / "model")
    ids, mask = np.array([[5, 6, 7], [8, 9, 0]]), np.array([[1, 1, 1], [1, 1, 0]])
    found = model({"input_ids": ids, "attention_mask": mask, "labels": ids})["logits"]
    np.testing.assert_allclose(found, [table[[5, 6, 7]].sum(axis=0), table[[8, 9]].sum(axis=0)], rtol=1e-5)
