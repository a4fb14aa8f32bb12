"""Results of queries, and queries that are refused."""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import DataError, UsageError
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.index import Index
from bertkit.vectors.search.ranking import SearchMethod
from bertkit.vectors.search.rows import TextRows
from bertkit.workflows.search import add, build, evaluate, query
from tests.conftest import toy_rows, write_csv

ROWS = toy_rows(40, seed=1)


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    rows = TextRows.open(write_csv(folder / "rows.csv", ROWS))
    build(rows, Embedder(str(tiny_model), precision="fp32"), folder / "index")
    return folder / "index"


def ask(folder, *texts, k=10, **options):
    return list(query(Index.open(folder), [({"query": text}, text) for text in texts], SearchMethod(k=k), **options))


def test_results_are_ranked_and_have_the_columns_of_their_rows(folder, tiny_model):
    texts = ["the good film", "an awful song"]
    results = ask(folder, *texts, k=3)
    embedder = Embedder(str(tiny_model), precision="fp32")
    vectors = embedder.encode([row["text"] for row in ROWS])
    for number, text in enumerate(texts):
        found = results[3 * number : 3 * number + 3]
        (asked,) = embedder.encode([text])
        cosines = vectors @ asked / np.linalg.norm(vectors, axis=1) / np.linalg.norm(asked)
        best = np.argsort(-cosines, kind="stable")[:3]
        assert [(each["query"], each["rank"], each["id"]) for each in found] == [
            (text, rank, row) for rank, row in enumerate(best, start=1)
        ]
        np.testing.assert_allclose([each["score"] for each in found], cosines[best], atol=1e-5)
        assert [(each["text"], each["label"]) for each in found] == [tuple(ROWS[row].values()) for row in best]


def test_more_results_than_rows_are_all_rows(folder, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    assert len(ask(folder, "a film", k=100)) == 40
    assert "the index has only 40 rows, fewer than -k 100" in caplog.text


def test_a_query_that_is_too_long_is_truncated_with_a_line(folder, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    ask(folder, "a film", "good " * 70, k=1)
    assert caplog.text.count("texts of more than 64 tokens are truncated") == 1


@pytest.mark.parametrize(
    "texts, options, message",
    [
        ([], {}, "no query"),
        (["a film", " "], {}, "a query is empty"),
        (["a film"], {"prompt": "query"}, "the index was built for queries with no prompt"),
        (["a film"], {"k": 0}, "-k 0"),
    ],
)
def test_queries_that_are_refused(texts, options, message, folder):
    with pytest.raises(UsageError, match=message):
        ask(folder, *texts, **options)


def test_an_index_that_changes_while_it_is_read_ends_in_one_line(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "index"))
    opened = Index.open(copy)
    add(copy, TextRows.open(write_csv(tmp_path / "more.csv", ROWS[:2])))
    with pytest.raises(DataError, match="the index changed while it was read"):
        list(query(opened, [({}, "the good film")], SearchMethod(by="words")))


def test_a_damaged_index_ends_in_one_line_whatever_is_damaged(folder, tiny_model, tmp_path):
    more = TextRows.open(write_csv(tmp_path / "more.csv", ROWS[:2]))
    for file in sorted(file for file in folder.rglob("[!.]*") if file.is_file()):
        content = file.read_bytes()
        for at in {9, len(content) // 2, len(content) - 3}:
            if at >= len(content):
                continue
            file.write_bytes(content[:at] + bytes([content[at] ^ 0x44]) + content[at + 1 :])
            for by in ("vectors", "words"):
                with contextlib.suppress(DataError, UsageError):  # what is not read is not noticed
                    list(query(Index.open(folder), [({}, "the good film")], SearchMethod(by=by, k=40)))
            with pytest.raises(DataError):
                add(folder, more)
            with pytest.raises(DataError):
                evaluate(folder, tmp_path / "relevance.jsonl")
        file.write_bytes(content)
    assert len(ask(folder, "the good film")) == 10
