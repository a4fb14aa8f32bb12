"""Predicting: one record per row, in order, whatever the format."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from bertkit.evaluation import rows_to_predict
from tests.conftest import toy_rows, write_csv, write_jsonl


def test_predictions_can_be_opened_as_csv(run, trained):
    write_csv(Path("new.csv"), [{"name": "a", "text": "superb film"}, {"name": "b", "text": "awful, dull film"}])
    ended = run("predict", "classify", "new.csv", "--model", trained, "--output", "out.csv")
    assert ended.code == 0
    with Path("out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["prediction"] for row in rows] == ["good", "bad"]
    probabilities = ["confidence", "probability_bad", "probability_good"]
    assert list(rows[0]) == ["id", "name", "text", "prediction", *probabilities]
    assert all(row["confidence"] == max(row["probability_bad"], row["probability_good"]) for row in rows)
    assert all(len(row[name].partition(".")[2]) <= 4 for row in rows for name in probabilities)


def test_csv_goes_out_as_it_came_in(run, trained):
    Path("new.csv").write_bytes("Ticket;text;n\n7;superb größe;1,5\n".encode("utf-8-sig"))
    given = ["predict", trained, "new.csv", "--output", "out.csv"]
    assert run(*given, "--set", "data.columns.id=Ticket").code == 0
    head, row = Path("out.csv").read_bytes().decode("utf-8").splitlines()
    assert head == "\ufeffTicket;text;n;prediction;confidence;probability_bad;probability_good"  # the id only once
    assert row.startswith("7;superb größe;1,5;good;0.")
    asked = ["--columns", "n,prediction", "--delimiter", "|", "--encoding", "utf-8"]
    assert run(*given, *asked).code == 0
    assert Path("out.csv").read_bytes() == b"n|prediction\r\n1,5|good\r\n"
    ended = run(*given, "--columns", "n,label")
    assert (ended.code, ended.last[:50]) == (2, "error: --columns: there is no column 'label' - the")
    assert Path("out.csv").read_bytes() == b"n|prediction\r\n1,5|good\r\n"


def test_numbers_of_the_rows_are_never_rounded(run, trained):
    write_jsonl(Path("new.jsonl"), [{"ID": 3, "text": "superb", "price": 1.23456789}])
    assert run("predict", trained, "new.jsonl", "--output", "out.csv", "--digits", 1).code == 0
    with Path("out.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert (row["price"], row["confidence"]) == ("1.23456789", row["probability_good"])
    assert len(row["confidence"]) == 3 and next(iter(row)) == "ID"


def predict(run, trained, *options, **keywords):
    ended = run("predict", "classify", "--model", trained, *options, **keywords)
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def test_a_run_predicts_by_its_own_recipe(run, trained):
    write_csv(Path("new.csv"), toy_rows(5, seed=3))
    by_run = run("predict", trained, "new.csv")
    assert (by_run.code, by_run.out) == (0, run("predict", "classify", "new.csv", "--model", trained).out)


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
    from bertkit.recipe import DataConfig

    file = write_csv(tmp_path / "rows.csv", [{"text": row["text"]} for row in toy_rows(30, seed=9)])
    assert run("predict", "classify", file, "--model", trained, "-o", f"out.{ending}").code == 0
    back = [values for _, values in read_records(Path(f"out.{ending}"), DataConfig())]
    assert [str(values["id"]) for values in back] == [str(number) for number in range(30)]
    expected = [record["prediction"] for record in predict(run, trained, file)]
    assert [values["prediction"] for values in back] == expected
    assert sorted(Path().iterdir()) == [Path(f"out.{ending}")]


def test_rows_are_streamed_in_chunks(run, trained, tmp_path, monkeypatch):
    file = write_csv(tmp_path / "rows.csv", [{"text": row["text"]} for row in toy_rows(30, seed=9)])
    whole = predict(run, trained, file)
    monkeypatch.setattr(rows_to_predict, "CHUNK_ROWS", 7)
    chunked = predict(run, trained, file)
    assert [record["prediction"] for record in chunked] == [record["prediction"] for record in whole]
    assert [record["id"] for record in chunked] == list(range(30))


def test_rows_before_the_end_of_a_stream_that_was_cut_off_are_answered(run, trained):
    content = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in ("a good film", "a bad café"))
    cut = content.encode()[: content.encode().index("é".encode()) + 1]
    ended = run("predict", trained, "-", stdin=cut)
    assert [json.loads(line)["text"] for line in ended.out.splitlines()] == ["a good film"]
    assert ended.code == 3
    assert ended.last.startswith("error: the utf-8 text ends inside a character, after ")
    assert "data.encoding" not in ended.last


def test_a_bad_row_leaves_no_half_file(run, trained, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text\n" + "good film\n" * 10 + "bad,film\n")
    ended = run("predict", "classify", file, "--model", trained, "-o", "out.csv")
    assert ended.code == 3
    assert "rows.csv:12" in ended.last
    assert not list(Path().iterdir())


@pytest.fixture
def never_loaded(monkeypatch):
    """Let every attempt to load weights fail the test."""
    from bertkit.evaluation.checkpoint import CheckpointInfo

    monkeypatch.setattr(CheckpointInfo, "load", lambda *_: pytest.fail("the model is loaded"))


@pytest.mark.parametrize(
    ("column", "options"),
    [
        ("prediction", []),
        ("probabilities", ["-o", "out.jsonl"]),
        ("probability_bad", ["-o", "out.csv"]),
        ("confidence", ["-o", "out.csv"]),
        ("probability_good", ["-o", "out.parquet"]),
    ],
)
def test_a_column_that_would_be_lost_is_refused_before_the_model_is_loaded(run, trained, never_loaded, column, options):
    write_csv(Path("rows.csv"), [{"text": "good", column: "mine"}])
    ended = run("predict", "classify", "rows.csv", "--model", trained, *options)
    fault = f"error: predictions have a column of the same name (rows.csv, column '{column}')"
    assert (ended.code, ended.last) == (3, f"{fault} - rename the column in the file")
    assert [str(entry) for entry in Path().iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_columns_that_no_prediction_has_are_kept(run, trained, ending):
    """In jsonl, a probability has no column of its own."""
    from bertkit.data.files import read_records
    from bertkit.recipe import DataConfig

    mine = {"probability_other": "1", "start": "2", **({"probability_bad": "3"} if ending == "jsonl" else {})}
    write_csv(Path("rows.csv"), [{"text": "good", **mine}])
    assert run("predict", "classify", "rows.csv", "--model", trained, "-o", f"out.{ending}").code == 0
    ((_, record),) = read_records(Path(f"out.{ending}"), DataConfig())
    assert {name: record[name] for name in mine} == mine


def test_a_field_that_only_some_predictions_have_is_refused_too(run, trained, monkeypatch):
    from bertkit.tasks import text_classification

    decode = text_classification.decode
    monkeypatch.setattr(
        text_classification, "decode", lambda *given: [{**record, "note": ""} for record in decode(*given)]
    )
    write_csv(Path("rows.csv"), [{"text": "good", "note": "mine"}])
    ended = run("predict", "classify", "rows.csv", "--model", trained, "-o", "out.csv")
    assert ended.code == 3
    assert "column 'note'" in ended.last
    assert not Path("out.csv").exists()


@pytest.mark.parametrize(
    "recipe", ["classify", "regress", "ner", "squad", "choose", "wsd", "rerank", "similarity", "similarity-triples"]
)
def test_families_say_what_their_predictions_have(recipe):
    """All of it, or all but what only some have: a family that grows a field has to name it in its COLUMNS."""
    from bertkit.recipe import load_recipe
    from bertkit.tasks import load_task

    sometimes = {"ner": {"entities", "spans", "words"}, "squad": {"null_odds"}}
    documented = (
        Path(__file__).parents[2].joinpath("docs/recipes.md").read_text().split("## Predictions")[1].split("\n## ")[0]
    )
    task = load_recipe(recipe).task
    (line,) = [line for line in documented.splitlines() if line.startswith(f"| `{task}`")]
    fields = set(re.findall("`([a-z_]+)`", line.split("|")[3])) - {"no_answer", "nearest"}
    assert set(load_task(load_recipe(recipe)).COLUMNS.predicted) == fields - sometimes.get(recipe, set())


@pytest.mark.parametrize("name", ["rows.csv", "./rows.csv", "symbolic.csv", "hard.csv"])
def test_the_rows_are_not_replaced_by_their_predictions(run, trained, never_loaded, name):
    file = write_csv(Path("rows.csv"), [{"text": "good"}])
    before = file.read_bytes()
    Path("symbolic.csv").symlink_to(file)
    Path("hard.csv").hardlink_to(file)
    ended = run("predict", "classify", "rows.csv", "--model", trained, "-o", name)
    assert ended.code == 2
    assert f"--output is the file to predict ({Path(name)}) - nothing was written" in ended.last
    assert file.read_bytes() == before


def test_data_and_model_are_not_replaced_by_predictions(run, trained, never_loaded, toy_data):
    recipe = yaml.safe_load((trained / "recipe.yaml").read_text())
    for source, name in ((toy_data, "train.csv"), (toy_data, "validation.csv"), (toy_data / "train.csv", "train.csv")):
        recipe["data"] = {**recipe["data"], "source": str(source)}
        Path("mine.yaml").write_text(yaml.safe_dump(recipe))
        ended = run("predict", "mine.yaml", "--text", "good", "--model", trained, "-o", toy_data / name)
        assert (ended.code, "--output is a data file of the recipe" in ended.last) == (2, True)
    ended = run("predict", "classify", "--text", "good", "--model", trained, "-o", trained / "metrics.jsonl")
    assert (ended.code, "--output is a file of the model folder" in ended.last) == (2, True)


def test_two_predictions_of_one_output_do_not_mix(run, trained, never_loaded):
    from bertkit.storage.outputs import lock_output

    file = write_csv(Path("rows.csv"), [{"text": "good"}])
    Path("out.csv").write_text("before")
    with lock_output(Path("out.csv")):
        ended = run("predict", "classify", file, "--model", trained, "-o", "out.csv")
    assert ended.code == 6
    assert ended.last.startswith(f"error: process {os.getpid()} on ")
    assert ended.last.endswith(" is writing this output (out.csv) - wait for it, or choose another --output")
    assert Path("out.csv").read_text() == "before"


def test_what_cannot_be_written_is_refused_before_the_model_is_loaded(run, trained, never_loaded):
    ended = run("predict", "classify", "--text", "good", "--model", trained, "-o", "nowhere/out.csv")
    assert ended.code == 6
    assert ended.last.startswith("error: cannot be written: No such file or directory (nowhere/out.csv)")


def test_formulas_are_escaped_only_in_files_of_cells(run, trained, never_loaded):
    asked = ["predict", "classify", "--text", "=1+1 good", "--model", trained, "--escape-formulas"]
    assert run(*asked, "-o", "out.jsonl").code == 2
    assert run(*asked).last.endswith(" without --output - name a file with --output")


def test_a_spreadsheet_is_given_no_formula(run, trained):
    asked = ["predict", "classify", "--text", "=1+1 good", "--model", trained, "-o", "out.csv"]
    for options, text in (([], "=1+1 good"), (["--escape-formulas"], "'=1+1 good")):
        assert run(*asked, *options).code == 0
        with Path("out.csv").open() as stream:
            assert [row["text"] for row in csv.DictReader(stream)] == [text]


@pytest.mark.parametrize("output", [[], ["-o", "out.jsonl"], ["-o", "out.csv"], ["-o", "out.parquet"]])
def test_dates_of_parquet_are_kept(run, trained, output):
    import datetime

    import pyarrow
    from pyarrow import parquet

    from bertkit.data.files import read_records
    from bertkit.recipe import DataConfig

    day = datetime.date(2026, 1, 2)
    parquet.write_table(pyarrow.table({"text": ["good"], "day": [day]}), "rows.parquet")
    ended = run("predict", "classify", "rows.parquet", "--model", trained, *output)
    assert ended.code == 0, ended.err
    ((_, record),) = read_records(Path(output[1]), DataConfig()) if output else [(1, json.loads(ended.out))]
    assert record["day"] == (day if output[1:] == ["out.parquet"] else "2026-01-02")


def test_numbers_that_turn_out_to_be_fractions_stay_whole_in_parquet(run, trained, monkeypatch):
    from pyarrow import parquet

    from bertkit.data import output

    monkeypatch.setattr(output, "_CHUNK_ROWS", 2)
    rows = [{"text": "good", "number": 1, "note": None}] * 2 + [{"text": "bad", "number": 1.5, "note": "late"}]
    write_jsonl(Path("rows.jsonl"), rows)
    assert run("predict", "classify", "rows.jsonl", "--model", trained, "-o", "out.parquet").code == 0
    table = parquet.read_table("out.parquet")
    assert table["number"].to_pylist() == [1, 1, 1.5]
    assert table["note"].to_pylist() == [None, None, "late"]


def test_a_pair_needs_both_texts(run, trained):
    pairs = ["--set", "data.columns={text: a, text_pair: b, label: label}"]
    Path("p.csv").write_text("a\ngood\n")
    ended = run("predict", "classify", "p.csv", "--model", trained, *pairs)
    assert (ended.code, ended.last) == (
        3,
        "error: no column 'b'; there are 'a' (p.csv) - add --set data.columns.text_pair=COLUMN",
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--text", "good"], 'this recipe needs text_pair too - add --row text_pair="..."'),
        (["--row", "txt=good"], "no canonical column is called 'txt' - did you mean text?"),
        (["--row", "good"], "--row good is not COLUMN=VALUE - write e.g. --row text='Good.'"),
    ],
)
def test_a_row_needs_the_columns_of_its_recipe(run, trained, options, expected):
    ended = run("predict", "mnli", "--model", trained, "--set", "labels=[bad, good]", *options)
    assert (ended.code, ended.last) == (2, f"error: {expected}")


def test_a_row_has_no_second_text_for_a_model_of_single_texts(run, trained):
    ended = run("predict", trained, "--row", "text=good", "--row", "text_pair=bad")
    assert (ended.code, ended.last) == (2, "error: the model was trained without text_pair - leave it out")


def test_special_tokens_in_a_text_are_text(run, trained):
    (marked,) = predict(run, trained, "--text", "good [SEP] [MASK] [CLS] film")
    from bertkit.modeling.tokenizer import load_tokenizer
    from bertkit.recipe import load_recipe
    from bertkit.tokens.features import TaskContext, encode_texts

    context = TaskContext(load_recipe("classify"), load_tokenizer(trained), ("bad", "good"))
    (feature,) = encode_texts([{"text": marked["text"]}], context)
    assert [token for token in feature["input_ids"] if token in (2, 3, 4)] == [2, 3]


def test_rows_with_labels_and_repeated_ids_are_predicted_one_by_one(run, trained):
    Path("rows.csv").write_text("id,text,label\n9,superb film,x\n9,awful film,y\n3,superb film,z\n")
    records = predict(run, trained, "rows.csv")
    assert [(record["id"], record["prediction"]) for record in records] == [("9", "good"), ("9", "bad"), ("3", "good")]


@pytest.mark.parametrize("column", ["text_pair", "premise", "Sentence2", "question"])
def test_a_column_that_looks_like_input_and_is_not_read_is_named(run, trained, column):
    write_csv(Path("rows.csv"), [{"text": "a good film", column: "a dull book", "date": "today"}])
    ended = run("predict", trained, "rows.csv")
    assert (ended.code, ended.err.count("warning: ")) == (0, 1)
    assert f"'{column}' looks like input and is not read" in ended.err
    write_csv(Path("rows.csv"), [{"text": "a good film", "date": "today"}])
    assert "not read" not in run("predict", trained, "rows.csv").err
