"""What the commands of `bertkit search` print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.cli.commands.search import print_change, print_scores
from bertkit.cli.output import print_records, print_result
from bertkit.cli.terminal import json_output
from bertkit.vectors.search.passages import Coverage
from bertkit.workflows.search import IndexReport, RankingScores, SearchScores
from tests.conftest import toy_rows, write_csv

REPORT = IndexReport(Path("index"), 1, 1200, 384, "cosine", "demo", Coverage(10, 0, 50, 50), None, 64, True, 2_000_000)


def test_what_is_printed(capsys):
    print_change(REPORT, "added")
    assert capsys.readouterr().out.splitlines() == [
        "index: 1 row added; 1,200 rows, vectors of 384 dimensions (cosine), 2.0 MB",
        "  100% of the text reaches the model",
    ]
    with json_output():
        print_change(REPORT, "deleted")
    printed = json.loads(capsys.readouterr().out)
    assert (printed["index"], printed["deleted"], printed["rows"]) == ("index", 1, 1200)


def test_an_index_from_first_to_last(run, tiny_model, tmp_path):
    write_csv(tmp_path / "work" / "rows.csv", toy_rows(30, seed=1))
    (tmp_path / "work" / "more.txt").write_text("so good a song\n")
    ended = run("search", "build", "rows.csv", "--model", tiny_model, "--output", "index", "--set", "labels=[a]")
    assert (ended.code, ended.last[:20]) == (2, "error: --set labels:"), ended.err
    ended = run("search", "build", "rows.csv", "--model", tiny_model, "--output", "index", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["added"] == 30
    assert run("search", "add", "index", "more.txt").out.startswith("index: 1 row added; 31 rows")
    ended = run("search", "query", "index", "so good a song", "-k", "2", "--verify")
    first, second = map(json.loads, ended.out.splitlines())
    assert (first["id"], first["text"], first["rank"], second["rank"]) == (30, "so good a song", 1, 2)
    assert run("search", "delete", "index", "--id", "30").out.startswith("index: 1 row deleted; 30 rows")
    ended = run("search", "query", "index", "--file", "more.txt", "-k", "1", "--json")
    assert json.loads(ended.out)["results"][0]["id"] != 30
    ended = run("search", "query", "index", "--file", "more.txt", "--output", "found.csv", "-k", "3")
    assert ended.out == "found.csv: 3 rows\n"


def test_no_index_and_no_file(run):
    ended = run("search", "add", "index", "rows.csv")
    assert (ended.code, ended.last) == (
        2,
        "error: no such index (index) - build it with `bertkit search build`",
    )
    assert "standard input only once" in run("search", "add", "index", "-").last


def test_an_id_is_needed(run):
    ended = run("search", "delete", "index")
    assert ended.code == 2
    assert "--id" in ended.last


RESULT = {"query": "a film", "rank": 1, "score": 0.5, "id": 3, "text": "The film."}


def test_results_are_json_lines_or_one_object(capsys):
    print_records("results", [RESULT])
    assert json.loads(capsys.readouterr().out) == RESULT
    with json_output():
        print_records("results", [RESULT])
    assert json.loads(capsys.readouterr().out)["results"] == [RESULT]


def test_results_go_to_a_file_that_is_none_of_those_that_are_read(run, tiny_model):
    Path("films.csv").write_text("text\nThe film.\nA song.\n")
    assert run("search", "build", "films.csv", "--model", tiny_model, "--output", "index").code == 0
    Path("queries.csv").write_text("text\na film\n")
    command = ("search", "query", "index", "--file", "queries.csv", "-k", 1, "--output")
    assert run(*command, "found.jsonl").out == "found.jsonl: 1 row\n"
    assert json.loads(Path("found.jsonl").read_text())["rank"] == 1
    for output, message in [
        ("queries.csv", "--output is the file of queries"),
        ("index/rows.jsonl", "--output is a file of the index"),
        ("found.npy", "unknown ending"),
    ]:
        ended = run(*command, output)
        assert (ended.code, message in ended.last) == (2, True)


def test_one_source_of_queries(run):
    assert "no query" in run("search", "query", "index").last
    assert "QUERY and --file are both given" in run("search", "query", "index", "a film", "--file", "queries.csv").last


RERANKING = [
    RankingScores("vectors", {"ndcg@10": 0.5, "map": 0.4}, {"ndcg@10": (0.4, 0.6), "map": None}),
    RankingScores(
        "hybrid",
        {"ndcg@10": 0.75, "map": 0.5},
        {"ndcg@10": (0.7, 0.8), "map": None},
        {"ndcg@10": 0.25, "map": 0.1},
        {"ndcg@10": (0.2, 0.3), "map": None},
    ),
]


def test_each_ranking_has_its_scores_intervals_and_gain(capsys):
    result = SearchScores(Path("index"), 1200, 50, True, RERANKING)
    print_scores(result)
    assert capsys.readouterr().out.splitlines() == [
        "index: 1,200 queries, 50 passages; documents are ranked by their best",
        "  scores",
        "    ranking  ndcg@10     map",
        "    vectors   0.5000  0.4000",
        "    hybrid    0.7500  0.5000",
        "  95% intervals over queries",
        "    ranking           ndcg@10  map",
        "    vectors  0.4000 to 0.6000  n/a",
        "    hybrid   0.7000 to 0.8000  n/a",
        "  gains, query by query",
        "    ranking     over  ndcg@10      95% interval",
        "    hybrid   vectors  +0.2500  0.2000 to 0.3000",
    ]
    with json_output():
        print_result(result, print_scores)
    printed = json.loads(capsys.readouterr().out)
    assert printed["rankings"][1]["gain_intervals"] == {"ndcg@10": [0.2, 0.3], "map": None}
    assert printed["index"] == "index"


def test_passages_are_json_lines_with_their_characters(run, tiny_model):
    text = "The film was good.\nA book is so dull.\nThis song was lovely and fine.\n"
    Path("book.txt").write_text(text)
    ended = run("search", "passages", "book.txt", "--model", tiny_model, "--passage-tokens", 13, "--overlap", 6)
    assert ended.code == 0
    passages = [json.loads(line) for line in ended.out.splitlines()]
    assert [passage["id"] for passage in passages] == ["book.txt#1", "book.txt#2"]
    assert [text[passage["start"] : passage["end"]] for passage in passages] == [p["text"] for p in passages]
    assert ended.last == "passages: 2, of texts: 1; 100% of the text reaches the model"


def test_passages_never_overwrite_their_documents(run, tiny_model):
    Path("films.jsonl").write_text('{"id": "a", "title": "Films", "text": "The film was good."}\n')
    command = ("search", "passages", "films.jsonl", "--model", tiny_model, "--output")
    assert "--output is the file of the documents" in run(*command, "films.jsonl").last
    assert run(*command, "passages.csv").out == "passages.csv: 1 row\n"
    assert Path("passages.csv").read_text().startswith("id,text,document,file,start,end,title\na#1,")


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--passage-tokens", 400], "the model reads at most 64"), (["--output", "a.pdf"], "unknown ending '.pdf'")],
)
def test_impossible_options_are_refused(options, message, run, tiny_model):
    Path("book.txt").write_text("A film.\n")
    ended = run("search", "passages", "book.txt", "--model", tiny_model, *options)
    assert ended.code == 2
    assert message in ended.last
