"""Scores of the rankings of an index, beside plain loops over its rows."""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from bertkit.errors import DataError
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.rows import TextRows
from bertkit.workflows.search import build, evaluate
from tests.conftest import toy_rows

TEXTS = [f"{row['text']} {'xyzabcdefg'[number % 10]}" for number, row in enumerate(toy_rows(40, seed=5))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    """An index of texts, and one of the passages of four documents of ten texts each."""
    folder = tmp_path_factory.mktemp("search")
    embedder = Embedder(str(tiny_model), precision="fp32")
    documents = ["\n".join(TEXTS[start : start + 10]) for start in range(0, 40, 10)]
    for name, texts, passages in (("rows", TEXTS, None), ("split", documents, {"tokens": 20, "overlap": 0})):
        lines = (json.dumps({"id": f"{name}{number}", "text": text}) for number, text in enumerate(texts))
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
        build(TextRows.open(folder / f"{name}.jsonl"), embedder, folder / name, passages=passages)
    return folder


def write(folder, rows):
    (folder / "relevance.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "relevance.jsonl"


def test_scores_are_those_of_plain_rankings(folder, tiny_model):
    """Each query is a text; that text and the one after it are relevant."""
    rows = [{"query": TEXTS[n], "relevant": [f"rows{n}", f"rows{n + 1}"]} for n in range(0, 40, 4)]
    # of equal scores, the relevant text comes last
    reranker = SimpleNamespace(
        checkpoint_info=None, score=lambda pairs: np.array([float(query == text) for query, text in pairs])
    )
    result = evaluate(folder / "rows", write(folder, rows), reranker=reranker, candidates=30)
    scores = {of.ranking: of.scores for of in result.rankings}
    assert list(scores) == ["words (BM25)", "vectors", "hybrid", "hybrid and rerank"]
    vectors = Embedder(str(tiny_model), precision="fp32").encode(TEXTS)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    reciprocal, precision = [], []
    for number in range(0, 40, 4):
        order = np.argsort(-(vectors @ vectors[number]), kind="stable").tolist()
        ranks = sorted(order.index(relevant) + 1 for relevant in (number, number + 1))
        reciprocal.append(1 / ranks[0])
        precision.append((1 / ranks[0] + 2 / ranks[1]) / 2)
    assert scores["vectors"]["mrr@10"] == pytest.approx(np.mean(reciprocal))
    assert scores["vectors"]["map@100"] == pytest.approx(np.mean(precision))
    assert scores["vectors"]["recall@100"] == 1
    assert scores["hybrid and rerank"]["mrr@10"] == 1
    intervals = result.rankings[1].intervals
    assert intervals["map@100"][0] < scores["vectors"]["map@100"] < intervals["map@100"][1]
    gained = [scores[way]["map@100"] - scores[before]["map@100"] for before, way in pairwise(scores)]
    assert [of.gains.get("map@100") for of in result.rankings] == [None, *map(pytest.approx, gained)]


def test_documents_are_ranked_by_their_best_passage(folder, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    rows = [{"query": TEXTS[n], "relevant": f"split{n // 10}", "grade": 2} for n in range(0, 40, 3)]
    rows += [{"query": "the film", "relevant": "split9", "grade": 1}, {"query": "a", "relevant": "split1", "grade": 0}]
    result = evaluate(folder / "split", write(folder, rows))
    assert result.by_document
    assert result.queries == 16
    words = next(of.scores for of in result.rankings if of.ranking.startswith("words"))
    assert words["mrr@10"] == pytest.approx(14 / 15)
    assert words["recall@10"] == pytest.approx(14 / 15)
    assert "1 of 5 relevant ids are not in the index, such as 'split9': they count as not found" in caplog.messages
    assert "1 of 16 queries have nothing relevant: they are left out" in caplog.messages


@pytest.mark.parametrize(
    ("relevant", "message"),
    [
        (["q1", "q2"], "has none of the 2 relevant ids, such as 'q1'"),
        (["split1", "split1#1"], "'split1#1' is a passage, and 'split1' is a document"),
    ],
)
def test_files_that_do_not_fit_the_index_are_refused(folder, relevant, message):
    with pytest.raises(DataError, match=message):
        evaluate(folder / "split", write(folder, [{"query": "the film", "relevant": relevant}]))
    with pytest.raises(DataError, match="nothing is relevant"):
        evaluate(folder / "split", write(folder, [{"query": "the film", "relevant": "a", "grade": 0}]))


def test_an_index_says_how_much_of_its_texts_was_read(folder):
    manifest = Index.open(folder / "split").manifest
    assert manifest.passages == {"tokens": 20, "overlap": 0}
    assert (manifest.coverage.texts, manifest.coverage.share) == (4, 1)
