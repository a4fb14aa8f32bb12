"""Predicting: one record per row, in order, whatever the format."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.conftest import toy_rows, write_csv


def test_predictions_can_be_opened_as_csv(run, trained):
    write_csv(Path("new.csv"), [{"name": "a", "text": "superb film"}, {"name": "b", "text": "awful, dull film"}])
    ended = run("predict", "classify", "new.csv", "--model", trained, "--output", "out.csv")
    assert ended.code == 0
    with Path("out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["prediction"] for row in rows] == ["good", "bad"]
    assert list(rows[0]) == ["id", "name", "text", "prediction", "probability_bad", "probability_good"]


def predict(run, trained, *options, **keywords):
    ended = run("predict", "classify", "--model", trained, *options, **keywords)
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def test_one_text(run, trained):
    (record,) = predict(run, trained, "--text", "a superb song")
    assert record["prediction"] == "good"
    assert set(record["probabilities"]) == {"bad", "good"}
    assert record["text"] == "a superb song"


def test_every_format_gives_one_record_a_row_in_order(run, trained, tmp_path):
    rows = [{"uid": f"r{n}", "text": row["text"]} for n, row in enumerate(toy_rows(50, seed=9))]
    write_csv(tmp_path / "rows.csv", rows)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    from_csv = predict(run, trained, tmp_path / "rows.csv")
    assert from_csv == predict(run, trained, tmp_path / "rows.jsonl")
    stream = (tmp_path / "rows.jsonl").read_text()
    assert from_csv == predict(run, trained, "-", stdin=stream)
    assert [record["uid"] for record in from_csv] == [row["uid"] for row in rows]
    assert [record["id"] for record in from_csv] == list(range(50))


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_written_files_can_be_read_back(run, trained, tmp_path, ending):
    from bertkit.data.files import read_records
    from bertkit.recipe import Data

    file = write_csv(tmp_path / "rows.csv", [{"text": row["text"]} for row in toy_rows(30, seed=9)])
    assert run("predict", "classify", file, "--model", trained, "-o", f"out.{ending}").code == 0
    back = [values for _, values in read_records(Path(f"out.{ending}"), Data())]
    assert [str(values["id"]) for values in back] == [str(number) for number in range(30)]
    expected = [record["prediction"] for record in predict(run, trained, file)]
    assert [values["prediction"] for values in back] == expected
    assert sorted(Path().iterdir()) == [Path(f"out.{ending}")]


def test_rows_are_streamed_in_chunks(run, trained, tmp_path, monkeypatch):
    from bertkit.workflows import predict as workflow

    file = write_csv(tmp_path / "rows.csv", [{"text": row["text"]} for row in toy_rows(30, seed=9)])
    whole = predict(run, trained, file)
    monkeypatch.setattr(workflow, "_CHUNK", 7)
    chunked = predict(run, trained, file)
    assert [record["prediction"] for record in chunked] == [record["prediction"] for record in whole]
    assert [record["id"] for record in chunked] == list(range(30))


def test_a_bad_row_leaves_no_half_file(run, trained, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text\n" + "good film\n" * 10 + "bad,film\n")
    ended = run("predict", "classify", file, "--model", trained, "-o", "out.csv")
    assert ended.code == 3
    assert "rows.csv:12" in ended.last
    assert not list(Path().iterdir())


def test_a_column_that_would_be_lost_is_refused(run, trained, tmp_path):
    file = write_csv(tmp_path / "rows.csv", [{"text": "good", "prediction": "mine"}])
    ended = run("predict", "classify", file, "--model", trained)
    assert ended.last == "error: the rows already have a column 'prediction' - rename it, so that nothing is lost"


def test_a_pair_needs_both_texts(run, trained):
    pairs = ["--set", "data.columns={text: a, text_pair: b, label: label}"]
    Path("p.csv").write_text("a\ngood\n")
    ended = run("predict", "classify", "p.csv", "--model", trained, *pairs)
    assert (ended.code, ended.last) == (
        3,
        "error: no column 'b'; there are 'a' (p.csv) - --set data.columns.text_pair=COLUMN",
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--text", "good"], 'this recipe needs text_pair too - --row text_pair="..."'),
        (["--row", "txt=good"], "no canonical column is called 'txt' - did you mean text?"),
        (["--row", "good"], "--row good is not column=value - write e.g. --row text='Good.'"),
    ],
)
def test_a_row_needs_the_columns_of_its_recipe(run, trained, options, expected):
    ended = run("predict", "mnli", "--model", trained, "--set", "labels=[bad, good]", *options)
    assert (ended.code, ended.last) == (2, f"error: {expected}")


def test_special_tokens_in_a_text_are_text(run, trained):
    (marked,) = predict(run, trained, "--text", "good [SEP] [MASK] [CLS] film")
    from bertkit.modeling.load import load_tokenizer
    from bertkit.recipe import load_recipe
    from bertkit.tokens.features import Setup, encode_texts

    setup = Setup(load_recipe("classify"), load_tokenizer(trained), ("bad", "good"))
    (feature,) = encode_texts([{"text": marked["text"]}], setup)
    assert [token for token in feature["input_ids"] if token in (2, 3, 4)] == [2, 3]
