"""Rankings by vectors, by words, by both and by a reranker, and files of relevant rows, compared with plain loops."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bertkit.errors import DataError, UsageError
from bertkit.vectors.search.bm25 import BM25
from bertkit.vectors.search.index import Index, Manifest
from bertkit.vectors.search.passages import Coverage
from bertkit.vectors.search.ranking import Hit, SearchMethod, fuse, read_relevance, search

WORDS = ["cat", "dog", "bird", "fish", "tree", "red", "old"]
QUERIES = ["cat", "old red bird", "zebra"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An index of 150 rows, one of which is deleted, and the vectors of the queries."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 6))) for _ in range(150)]
    vectors = rng.standard_normal((153, 8)).astype(np.float32)
    records = [{"id": number, "text": text} for number, text in enumerate(texts)]
    folder = tmp_path_factory.mktemp("made") / "index"
    index = Index.create(folder, Manifest(8), lambda done: [(records, vectors[:150], Coverage())])
    return index.delete([4]), texts, vectors


def plain_rankings(texts, vectors, number):
    """The rows for one query: by the cosine of each, and by the BM25 of each that has one of its words."""
    query, alive = vectors[150 + number], [row for row in range(150) if row != 4]
    cosines = vectors[:150] @ query / np.linalg.norm(vectors[:150], axis=1)
    bm25 = BM25.build(enumerate(texts)).score(QUERIES[number], range(150))
    shared = [row for row in alive if set(texts[row].split()) & set(QUERIES[number].split())]
    return sorted(alive, key=lambda row: -cosines[row]), sorted(shared, key=lambda row: -bm25[row])


@pytest.mark.parametrize("by", ["vectors", "words", "hybrid"])
def test_rows_are_ranked_as_by_a_plain_loop(by, made):
    index, texts, vectors = made
    rankings = search(index, QUERIES, None if by == "words" else vectors[150:], SearchMethod(by, k=12))
    for number, ranking in enumerate(rankings):
        of_vectors, of_words = plain_rankings(texts, vectors, number)
        fused = {}
        for row in [*of_vectors[:100], *of_words[:100]]:
            ranks = [rows.index(row) + 1 for rows in (of_vectors[:100], of_words[:100]) if row in rows]
            fused[row] = sum(1 / (60 + rank) for rank in ranks)
        expected = {"vectors": of_vectors, "words": of_words, "hybrid": sorted(fused, key=lambda row: -fused[row])}[by]
        found = [hit.row for hit in ranking]
        if by == "hybrid":  # two rows that two rankings have at swapped ranks may come in either order
            assert [hit.score for hit in ranking] == pytest.approx(sorted(fused.values(), reverse=True)[:12])
            assert all(hit.score == pytest.approx(fused[hit.row]) for hit in ranking)
        else:
            assert found == expected[:12]


def test_a_reranker_sees_the_candidates_alone(made):
    index, texts, vectors = made
    seen = []

    def score(pairs):
        seen.extend(pairs)
        return np.array([len(text) for _, text in pairs])

    method = SearchMethod("vectors", k=3, reranker=SimpleNamespace(score=score), candidates=20)
    rankings = search(index, QUERIES, vectors[150:], method)
    assert len(seen) == 60
    for number, ranking in enumerate(rankings):
        first = plain_rankings(texts, vectors, number)[0][:20]
        expected = sorted(first, key=lambda row: -len(texts[row]))[:3]
        assert [(hit.row, hit.score) for hit in ranking] == [(row, len(texts[row])) for row in expected]


@pytest.mark.parametrize("wrong", [{"by": "vector"}, {"k": 0}, {"candidates": 0}])
def test_impossible_methods_are_refused(wrong):
    with pytest.raises(UsageError):
        SearchMethod(**wrong)


def test_scores_are_sums_of_reciprocal_ranks():
    first, second = [Hit(4, 0.5), Hit(7, 0.1)], [Hit(7, 30.0), Hit(9, 20.0)]
    (fused,) = fuse([first], [second], [[]])
    assert [hit.row for hit in fused] == [7, 4, 9]
    assert [hit.score for hit in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62])


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_query_may_have_several_rows_and_a_row_several_ids(tmp_path):
    rows = [
        {"query": "cats", "relevant": ["a"], "grade": 2},
        {"query": "dogs", "relevant": ["b", "7"], "grade": 1},
        {"query": "cats", "relevant": ["b"], "grade": 0},
        {"query": "cats", "relevant": ["a"], "grade": 2},
    ]
    expected = {"cats": {"a": 2, "b": 0}, "dogs": {"b": 1, "7": 1}}
    assert read_relevance(write_lines(tmp_path / "r.jsonl", rows)) == expected


def test_without_grades_all_ids_are_relevant(tmp_path):
    (tmp_path / "r.csv").write_text("query,relevant,note\ncats,1,\ncats,2,\n")
    assert read_relevance(tmp_path / "r.csv") == {"cats": {"1": 1, "2": 1}}


GOOD = {"query": "cats", "relevant": "a", "grade": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "x", "relevant": 1}], r"no column 'query'; the file has 'question', 'relevant' \(.*r.jsonl:1"),
        ([{"query": "x", "id": 1}], "no column 'relevant'"),
        ([GOOD, {**GOOD, "query": " "}], "empty cell .*2, column 'query'"),
        ([GOOD, {**GOOD, "relevant": None}], "empty cell .*2, column 'relevant'"),
        ([{**GOOD, "query": 3}], "3 is not a text"),
        ([{**GOOD, "relevant": [["a"]]}], "neither an id nor a list of ids"),
        ([{**GOOD, "grade": "high"}], "'high' is not a grade"),
        ([GOOD, {**GOOD, "relevant": "b", "grade": -1}], "-1 is not a grade .*2, column 'grade'"),
        ([GOOD, {**GOOD, "grade": 3}], "'a' has the grades 1 and 3 for one query"),
    ],
)
def test_wrong_rows_are_named(rows, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_relevance(write_lines(tmp_path / "r.jsonl", rows))
