"""Embedding files: every format in, every format out, killed and continued, by one process or two; cosines of pairs."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bertkit.errors import DataError
from bertkit.vectors import text_files
from bertkit.vectors.embedder import Embedder
from bertkit.workflows.embed import compute_similarity, read_pairs
from tests.conftest import toy_rows, write_csv, write_jsonl

ROWS = [{"uid": f"r{number}", "text": row["text"]} for number, row in enumerate(toy_rows(10, seed=5))]


@pytest.fixture(scope="module")
def expected(tiny_model):
    return Embedder(str(tiny_model), precision="fp32").encode([row["text"] for row in ROWS])


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(text_files, "_ROWS", 3)


@pytest.fixture
def embed(run, tiny_model):
    def run_command(*arguments, **keywords):
        return run("embed", *arguments, "--model", tiny_model, "--precision", "fp32", **keywords)

    return run_command


def test_a_file_is_embedded_in_order(embed, expected, small_parts):
    write_csv(Path("rows.csv"), ROWS)
    ended = embed("rows.csv", "-o", "out.parquet", "--set", "data.columns.id=uid")
    assert (ended.code, ended.out) == (0, "out.parquet: 10 vectors of 32 dimensions, float32\n"), ended.err
    table = parquet.read_table("out.parquet")
    assert table.column("id").to_pylist() == [row["uid"] for row in ROWS]
    np.testing.assert_allclose(table.column("embedding").to_pylist(), expected, atol=1e-6)
    assert sorted(map(str, Path().iterdir())) == ["out.parquet", "rows.csv"]


def test_vectors_go_to_stdout_without_an_output(embed, expected):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    records = [json.loads(line) for line in embed("-", stdin=lines).out.splitlines()]
    assert [record["id"] for record in records] == list(range(10))
    np.testing.assert_allclose([record["embedding"] for record in records], expected, atol=1e-6)
    (record,) = json.loads(embed("--text", ROWS[3]["text"], "--json").out)["vectors"]
    np.testing.assert_allclose(record["embedding"], expected[3], atol=1e-6)


def test_the_result_is_one_object_for_programs(embed):
    write_jsonl(Path("words.jsonl").absolute(), [{"tokens": ["the", "film"], "word_pos": 1}])
    arguments = ["--unit", "target", "--set", "data.columns.target=word_pos", "--layers", "mean_last_2"]
    ended = embed("words.jsonl", *arguments, "--dtype", "float16", "-o", "out.npy", "--json")
    about = json.loads(ended.out)
    assert (about["file"], about["vectors"], about["width"], about["unit"]) == ("out.npy", 1, 32, "target")
    assert json.loads(Path("out.npy.rows.jsonl").read_text()) == {"id": 0, "index": 1, "word": "film"}


def test_a_stopped_command_goes_on_where_it_was(embed, expected, small_parts, monkeypatch):
    write_csv(Path("rows.csv"), ROWS)
    encode, calls = Embedder.encode, []

    def stop_at_the_third(self, texts, **keywords):
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(self, texts, **keywords)

    monkeypatch.setattr(Embedder, "encode", stop_at_the_third)
    assert embed("rows.csv", "-o", "out.npy").code == 130
    assert not Path("out.npy").exists()
    refused = embed("rows.csv", "-o", "out.npy", "--pooling", "cls")
    assert refused.code == 2 and "--pooling: None there, cls requested" in refused.last
    ended = embed("rows.csv", "-o", "out.npy")
    assert ended.code == 0 and "resuming: 2 parts" in ended.err
    assert calls == [3, 3, 3, 3, 1]
    np.testing.assert_allclose(np.load("out.npy"), expected, atol=1e-6)


def test_rows_that_have_changed_are_embedded_again(embed, expected, small_parts, monkeypatch):
    write_csv(Path("rows.csv"), [*ROWS[:7], {"uid": "x", "text": ""}])
    ended = embed("rows.csv", "-o", "out.npy")
    assert ended.code == 3 and "no text (rows.csv:9, column 'text')" in ended.last
    write_csv(Path("rows.csv"), [ROWS[9], *ROWS[1:]])
    monkeypatch.setattr(Embedder, "encode", count(texts := [], Embedder.encode))
    assert embed("rows.csv", "-o", "out.npy").code == 0
    assert texts == [3, 3, 1]  # the second of four parts was there
    np.testing.assert_allclose(np.load("out.npy"), expected[[9, *range(1, 10)]], atol=1e-6)


def test_a_damaged_part_is_embedded_again(embed, expected, small_parts, monkeypatch):
    write_csv(Path("rows.csv"), [*ROWS[:7], {"uid": "x", "text": ""}])
    assert embed("rows.csv", "-o", "out.npy").code == 3
    part = sorted(Path(".out.npy.parts").glob("*.part"))[1]
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    write_csv(Path("rows.csv"), ROWS)
    monkeypatch.setattr(Embedder, "encode", count(texts := [], Embedder.encode))
    ended = embed("rows.csv", "-o", "out.npy")
    assert ended.code == 0 and f"{part.name} is damaged; recomputing it" in ended.err
    assert texts == [3, 3, 1]  # the first of four parts was whole
    np.testing.assert_allclose(np.load("out.npy"), expected, atol=1e-6)


def count(calls, function):
    def counted(self, texts, **keywords):
        calls.append(len(texts))
        return function(self, texts, **keywords)

    return counted


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["rows.parquet", "-o", "rows.parquet"], 2, "--output is the file to embed"),
        (["rows.jsonl", "-o", "none/out.npy"], 6, "cannot be written: No such file or directory"),
        (["rows.jsonl", "--text", "a"], 2, "FILE and --text are both given"),
        ([], 2, "nothing to embed"),
        (["rows.jsonl", "--dtype", "float16"], 2, "--dtype float16 without --output"),
        (["--text", "a", "--unit", "target"], 2, "--text with --unit target"),
        (["empty.jsonl", "-o", "out.npy"], 3, "the file is empty"),
    ],
)
def test_mistakes_end_in_one_line(embed, arguments, code, message):
    write_jsonl(Path("rows.jsonl").absolute(), ROWS)
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), "rows.parquet")
    Path("empty.jsonl").touch()
    ended = embed(*arguments)
    assert ended.code == code and message in ended.last, ended.err
    assert sorted(map(str, Path().iterdir())) == ["empty.jsonl", "rows.jsonl", "rows.parquet"]


@pytest.mark.slow
def test_a_run_is_a_model(run, trained):
    ended = run("embed", "--text", "a superb song", "--model", trained)
    assert len(json.loads(ended.out)["embedding"]) == 32


def many_rows(folder, count):
    write_csv(folder / "rows.csv", [{"text": row["text"]} for row in toy_rows(count, seed=6)])
    return ["embed", "rows.csv", "-o", "out.npy", "--precision", "fp32", "--dtype", "float16"]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_the_parts(processes, tiny_model, tmp_path, zygote):
    arguments = many_rows(tmp_path, 9000)
    codes, out, err = zygote.launch(tmp_path, [*arguments, "--model", tiny_model], processes)
    assert (codes, out) == ([0] * processes, "out.npy: 9,000 vectors of 32 dimensions, float16\n"), err
    together = (tmp_path / "out.npy").read_bytes()
    (tmp_path / "out.npy").unlink()
    assert zygote.run(tmp_path, [*arguments, "--model", tiny_model])[0] == 0
    assert (tmp_path / "out.npy").read_bytes() == together
    (tmp_path / "out.npy").unlink()
    for shard in range(processes, 0, -1):
        assert zygote.run(tmp_path, [*arguments, "--model", tiny_model, "--shard", f"{shard}/{processes}"])[0] == 0
        assert (tmp_path / "out.npy").exists() == (shard == 1)
    assert (tmp_path / "out.npy").read_bytes() == together


@pytest.mark.slow
@pytest.mark.parametrize(
    "function", ["bertkit.vectors.vector_files.write_vector_part", "bertkit.vectors.vector_files.write_vectors"]
)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_a_killed_command_ends_as_one_that_was_not(function, when, ending, tiny_model, tmp_path, zygote):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
        arguments = [*many_rows(folder, 9000), "--model", tiny_model, "-o", f"out.{ending}"]
    assert zygote.run(whole, arguments)[0] == 0
    call = 2 if function.endswith("write_vector_part") else 1
    assert zygote.run(broken, arguments, {"function": function, "call": call, "when": when})[0] == -9
    kept = {file.name: file.stat().st_mtime_ns for file in broken.glob(".out*/*.part")}
    assert kept
    if function.endswith("write_vector_part"):
        assert not (broken / f"out.{ending}").exists()
        # the parts that were there are not computed again
        assert zygote.run(broken, arguments, {"function": function, "call": 3 - len(kept), "when": "after"})[0] == -9
        assert kept.items() <= {file.name: file.stat().st_mtime_ns for file in broken.glob(".out*/*.part")}.items()
    assert zygote.run(broken, arguments)[0] == 0
    assert (broken / f"out.{ending}").read_bytes() == (whole / f"out.{ending}").read_bytes()
    assert sorted(file.name for file in broken.iterdir()) == sorted(file.name for file in whole.iterdir())


PAIRS = [("the good film", "a lovely song"), ("a dull book", "a dull book"), ("the film", "so good " * 40)]


@pytest.fixture
def embedder(tiny_model):
    return Embedder(str(tiny_model), precision="fp32")


def write(folder, text):
    (folder / "pairs.csv").write_text(text)
    return "pairs.csv"


def test_cosines_are_those_of_the_vectors(embedder, caplog):
    caplog.set_level(logging.INFO, "bertkit")
    rows = list(compute_similarity(embedder, [({"n": number}, *pair) for number, pair in enumerate(PAIRS)]))
    assert [row["n"] for row in rows] == [0, 1, 2]
    for row, pair in zip(rows, PAIRS, strict=True):
        first, second = (embedder.encode([text])[0].astype(np.float64) for text in pair)
        expected = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        assert row["cosine"] == pytest.approx(expected, abs=1e-6)
    assert rows[1]["cosine"] == pytest.approx(1, abs=1e-6)
    assert caplog.messages[1:] == ["texts of more than 64 tokens are truncated"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("text,other\na,b\n", "no column 'text_pair'"),
        ("text,text_pair\na,b\nc,\n", "no text"),
        ("text,text_pair,cosine\na,b,1\n", "results have a column of the same name"),
        ("text,text_pair\n", "no rows"),
    ],
)
def test_faults_of_a_file(text, message, embedder, here):
    with pytest.raises(DataError, match=message):
        list(compute_similarity(embedder, read_pairs(write(here, text))))
