"""Scoring and predicting: the same numbers as in training, for our own and for foreign checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.conftest import toy_rows, write_csv

COLA = ["--set", "labels=[bad, good]", "--set", "data.columns={text: text, label: label}"]


@pytest.fixture
def rows(tmp_path) -> Path:
    return write_csv(tmp_path / "rows.csv", toy_rows(60, seed=4))


@pytest.fixture
def foreign(trained, tmp_path) -> Path:
    """The trained checkpoint as somebody else would have saved it: no record, no names for labels."""
    folder = tmp_path / "foreign"
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    model.config.label2id = {"LABEL_0": 0, "LABEL_1": 1}
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(trained).save_pretrained(folder)
    return folder


def scores(ended) -> dict:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["results"][0]


def test_eval_gives_the_numbers_of_training(run, trained, rows):
    ours = scores(run("eval", "classify", "--model", trained, "--data", rows, "--json"))
    theirs = json.loads((trained / "run.json").read_text())["results"][0]
    assert ours["scores"] == theirs["scores"]
    assert ours["intervals"] == theirs["intervals"]
    assert (ours["split"], ours["rows"]) == ("all", 60)


def test_eval_agrees_with_a_plain_loop(run, trained, rows):
    model = AutoModelForSequenceClassification.from_pretrained(trained).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained)
    right = 0
    for row in toy_rows(60, seed=4):
        with torch.inference_mode():
            answer = int(model(**tokenizer(row["text"], return_tensors="pt")).logits.argmax())
        right += model.config.id2label[answer] == row["label"]
    assert (
        scores(run("eval", "classify", "--model", trained, "--data", rows, "--json"))["scores"]["accuracy"]
        == right / 60
    )


def test_labels_are_matched_by_name_whatever_their_order(run, trained, rows):
    options = ["--data", rows, "--json", "--set", "labels=[GOOD, BAD]"]
    write_csv(rows, [{**row, "label": row["label"].upper()} for row in toy_rows(60, seed=4)])
    assert scores(run("eval", "classify", "--model", trained, *options))["scores"]["accuracy"] > 0.9


def test_names_that_cannot_be_matched_are_refused_with_both_lists(run, foreign, rows):
    ended = run("eval", "classify", "--model", foreign, "--data", rows, *COLA)
    assert ended.code == 4
    assert ended.last == (
        "error: the checkpoint's labels (LABEL_0, LABEL_1) are not the recipe's (bad, good) - if you know what its "
        "outputs mean, say so in its order: --set 'model_labels=[bad, good]'"
    )


def test_a_foreign_checkpoint_is_scored_once_its_outputs_have_names(run, foreign, trained, rows):
    named = run(
        "eval", "classify", "--model", foreign, "--data", rows, *COLA, "--set", "model_labels=[bad, good]", "--json"
    )
    reversed_ = run(
        "eval", "classify", "--model", foreign, "--data", rows, *COLA, "--set", "model_labels=[good, bad]", "--json"
    )
    assert scores(named)["scores"]["accuracy"] > 0.9
    assert scores(reversed_)["scores"]["accuracy"] < 0.1


def test_a_file_that_a_run_was_trained_on_is_scored_on_what_it_held_out(run, tiny_model, tmp_path):
    file = write_csv(tmp_path / "all.csv", toy_rows(80, seed=6))
    assert run("finetune", "classify", "--model", tiny_model, "--data", file, "--epochs", 1).code == 0
    assert scores(run("eval", "classify", "--model", "runs/classify", "--data", file, "--json"))["rows"] == 8
    whole = run("eval", "classify", "--model", "runs/classify", "--data", file, "--split", "all", "--json")
    assert scores(whole)["rows"] == 80


def test_an_unfinished_run_is_not_scored(run, trained, tmp_path, rows):
    broken = Path(shutil.copytree(trained, tmp_path / "broken"))
    record = json.loads((broken / "run.json").read_text())
    (broken / "run.json").write_text(json.dumps({**record, "status": "stopped"}))
    ended = run("eval", "classify", "--model", broken, "--data", rows)
    assert ended.code == 4
    assert ended.last.startswith("error: the run is not finished (stopped)")


def test_unlabelled_rows_cannot_be_scored(run, trained, tmp_path):
    file = tmp_path / "test.csv"
    file.write_text("text,label\ngood film,-1\nbad film,-1\n")
    ended = run("eval", "classify", "--model", trained, "--data", file)
    assert ended.code == 3
    assert "no label (also in line 3)" in ended.last


def test_a_split_that_is_not_there(run, trained, toy_data):
    ended = run("eval", "classify", "--model", trained, "--data", toy_data, "--split", "tests")
    assert ended.code == 3
    assert "no split 'tests'" in ended.last


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


def test_eval_writes_predictions_where_asked(run, trained):
    folder = trained.parent
    ended = run("eval", "classify", "--model", trained, "--data", folder, "--split", "train", "--output", "scored")
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in Path("scored/predictions_train.jsonl").read_text().splitlines()]
    assert len(rows) == 400
    assert {"id", "text", "label", "prediction", "probabilities"} == set(rows[0])


def test_eval_says_at_once_that_it_cannot_write(run, trained):
    Path("scored").write_text("a file")
    ended = run("eval", "classify", "--model", trained, "--data", trained.parent, "--output", "scored")
    assert (ended.code, ended.last) == (
        6,
        "error: not a folder to write to: File exists (scored) - choose another --output",
    )
