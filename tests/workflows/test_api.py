"""A model that is loaded once says what `bertkit predict` says, whoever asks: threads, processes, batches."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import datasets
import pandas
import pyarrow
import pytest

import bertkit
from bertkit.data.demo import read_demo_rows
from bertkit.errors import BertkitError, DataError, ModelError, UsageError
from bertkit.progress import Silent
from bertkit.tasks import get_input_columns
from tests.analysis.test_explanations import RECIPES, fine_tune
from tests.conftest import toy_rows, write_csv, write_jsonl
from tests.kills import slow_unless
from tests.runtime.hand_made import write_exported

ROWS = [{"uid": f"r{number}", "text": row["text"]} for number, row in enumerate(toy_rows(40, seed=9))]
TEXTS = [row["text"] for row in ROWS]


@pytest.fixture(scope="module")
def model(trained):
    return bertkit.load(trained)


def from_command(run, *arguments):
    ended = run("predict", *arguments)
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def as_json(records):
    return json.loads(json.dumps(records))


def test_it_says_what_the_command_says_of_a_file_and_of_a_text(run, trained, model):
    file = write_csv(Path("rows.csv"), ROWS)
    assert as_json(model.predict(ROWS)) == from_command(run, trained, file)
    assert as_json(model.predict(TEXTS[0])) == from_command(run, trained, "--text", TEXTS[0])
    assert model.labels == ("bad", "good")
    assert (model.recipe.name, repr(model)) == ("classify", f"bertkit.load('{trained}')")


@pytest.mark.parametrize(
    "changes", [{"options.abstain_below": 0.999}, {"options.long_text": "windows_mean", "training.max_length": 8}]
)
def test_changes_of_the_recipe_are_those_of_the_command(run, trained, changes):
    file = write_csv(Path("rows.csv"), ROWS)
    given = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    answers = as_json(bertkit.load(trained, changes=changes).predict(ROWS))
    assert answers == from_command(run, trained, file, *given)
    assert answers != as_json(bertkit.load(trained).predict(ROWS))


def test_a_calibration_is_in_force(run, trained, tmp_path):
    copy = shutil.copytree(trained, tmp_path / "calibrated")
    rows = write_csv(Path("labeled.csv"), toy_rows(60, seed=11))
    assert run("calibrate", copy, "--data", rows).code == 0
    file = write_csv(Path("rows.csv"), ROWS)
    answers = as_json(bertkit.load(copy).predict(ROWS))
    assert answers == from_command(run, copy, file)
    assert answers != as_json(bertkit.load(trained).predict(ROWS))


def with_names_of_source(row, columns):
    """Return a row with the column names of the data that a model was trained on."""
    named = {}
    for name, value in row.items():
        source = columns.get(name, name)
        named |= {source: value} if isinstance(source, str) else dict(zip(source, value, strict=True))
    return named


@pytest.mark.parametrize("name", slow_unless(["similarity-texts"], RECIPES))
def test_every_task_family_answers_as_the_command_does(name, run, tmp_path):
    """Rows have the names of the data that it was trained on, or canonical ones, or none."""
    fine_tune(name, tmp_path, **{"data.limit": 300 if name == "wsd" else 24})
    loaded = bertkit.load(tmp_path / "run")
    wanted = get_input_columns(loaded.checkpoint_info.task, loaded.recipe)
    rows = read_demo_rows(loaded.recipe, "test", 6)
    rows = [{column: row[column] for column in wanted if column in row} for row in rows]
    named = [with_names_of_source(row, loaded.recipe.data.columns) for row in rows]
    expected = from_command(run, tmp_path / "run", write_jsonl(Path("rows.jsonl"), named))
    assert as_json(loaded.predict(named)) == expected
    predictions = [record["prediction"] for record in expected]
    assert [record["prediction"] for record in as_json(loaded.predict(rows))] == predictions
    inputs = [column for column, is_needed in wanted.items() if is_needed]
    by_order = loaded.predict([tuple(row[column] for column in inputs) for row in rows])
    assert [record["prediction"] for record in as_json(by_order)] == predictions


def test_an_exported_folder_needs_no_torch(run, light_zygote, tmp_path):
    folder = tmp_path / "exported"
    write_exported(folder, ("bad", "good"))
    script = tmp_path / "ask.py"
    script.write_text(
        "import json, sys, bertkit\n"
        f"print(json.dumps(bertkit.load({str(folder)!r}, 'classify').predict('a good film')))\n"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)\n"
    )
    import subprocess
    import sys

    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == from_command(run, "classify", "--model", folder, "--text", "a good film")


def test_a_dataframe_comes_back_with_columns(model, run, trained):
    given = pandas.DataFrame(ROWS, index=[f"x{number}" for number in range(len(ROWS))])
    answered = model.predict(given)
    assert list(answered) == ["uid", "text", "prediction", "confidence", "probability_bad", "probability_good"]
    assert list(answered.index) == list(given.index)
    assert list(given) == ["uid", "text"]
    records = model.predict(ROWS)
    assert list(answered["prediction"]) == [record["prediction"] for record in records]
    assert list(answered["probability_good"]) == [record["probabilities"]["good"] for record in records]
    assert len(model.predict(given[:0])) == 0


class FakePolars:
    """What is used of a DataFrame of polars, which the development tools lack."""

    def __init__(self, columns):
        self.values = columns
        self.columns, self.shape = list(columns), (len(next(iter(columns.values()))), len(columns))

    def to_dicts(self):
        return [dict(zip(self.values, row, strict=True)) for row in zip(*self.values.values(), strict=True)]

    def hstack(self, other):
        return FakePolars(self.values | other.values)


def test_a_dataframe_of_polars_does_too(model):
    answered = model.predict(FakePolars({"text": TEXTS[:3]}))
    assert isinstance(answered, FakePolars)
    assert answered.values["prediction"] == [record["prediction"] for record in model.predict(TEXTS[:3])]


def test_a_table_of_arrow_gives_records(model):
    table = pyarrow.Table.from_pylist(ROWS)
    assert model.predict(table) == model.predict(ROWS)
    assert model.predict(table["text"]) == model.predict([row["text"] for row in ROWS])


def test_a_lazy_frame_is_to_be_collected(model):
    class LazyFrame:
        columns = property(lambda self: pytest.fail("computes the frame's plan, with a warning"))

        def __repr__(self):
            return "<LazyFrame>"

        def collect(self):
            return self

    with pytest.raises(DataError, match=r"LazyFrame.* is not a row - pass its `.collect\(\)`"):
        model.predict(LazyFrame())


def test_a_data_set_and_its_map(model):
    rows = datasets.Dataset.from_list(ROWS)
    expected = model.predict(ROWS)
    assert model.predict(rows) == expected
    mapped = rows.map(model, batched=True, batch_size=7)
    assert mapped["prediction"] == [record["prediction"] for record in expected]
    assert mapped["probability_good"] == pytest.approx([one["probabilities"]["good"] for one in expected], abs=1e-6)
    with pytest.raises(DataError, match=r"a DatasetDict of test - name one of its splits, such as \['test'\]"):
        model.predict(datasets.DatasetDict(test=rows))


def test_answers_do_not_depend_on_neighbours(model):
    together = model.predict(TEXTS)
    for text, record in zip(TEXTS, together, strict=True):
        (alone,) = model.predict(text)
        assert alone["prediction"] == record["prediction"]
        assert alone["probabilities"] == pytest.approx(record["probabilities"], abs=1e-6)


def test_eight_threads_get_the_answers_of_one(model):
    rows = [row["text"] for row in toy_rows(80, seed=21)]
    expected = [record["probabilities"] for record in model.predict(rows)]
    with ThreadPoolExecutor(8) as pool:
        answers = [one["probabilities"] for (one,) in pool.map(model.predict, rows)]
    wrong = [a for a, b in zip(answers, expected, strict=True) if a != pytest.approx(b, abs=1e-6)]
    assert (len(answers), wrong) == (80, [])


def test_threads_that_share_a_model_load_it_once(trained, monkeypatch):
    from bertkit.evaluation.checkpoint import CheckpointInfo

    copy = pickle.loads(pickle.dumps(bertkit.load(trained)))
    loads, load = [], CheckpointInfo.load
    monkeypatch.setattr(CheckpointInfo, "load", lambda *a, **k: loads.append(1) or load(*a, **k))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(copy.predict, TEXTS[:8]))
    assert (len(answers), len(loads)) == (8, 1)


@pytest.mark.slow
def test_two_worker_processes_load_it_themselves(model):
    copy = pickle.loads(pickle.dumps(model))
    assert "_together" not in vars(copy)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(model, [{"text": TEXTS[:20]}, {"text": TEXTS[20:]}]))
    expected = [record["prediction"] for record in model.predict(TEXTS)]
    assert [one for batch in answers for one in batch["prediction"]] == expected


def test_rows_with_labels_are_scored_as_the_command_does(run, trained, model):
    rows = toy_rows(50, seed=31)
    ended = run("eval", trained, "--data", write_csv(Path("labeled.csv"), rows), "--json")
    assert ended.code == 0, ended.err
    (expected,) = json.loads(ended.out)["results"]
    for given in (rows, pandas.DataFrame(rows), datasets.Dataset.from_list(rows)):
        result = model.evaluate(given)
        assert (result.scores, result.rows, result.split) == (expected["scores"], 50, "all")
    with pytest.raises(DataError, match="rows to score are training rows of the model"):
        model.evaluate(toy_rows(400, seed=3))


def test_the_validation_rows_are_scored_without_rows(model, trained):
    recorded = json.loads((trained / "run.json").read_text())["results"][0]["scores"]
    assert model.evaluate().scores == recorded


def test_words_are_explained_as_the_command_does(run, trained, model):
    ended = run("explain", trained, "--text", "a superb film", "--json")
    assert ended.code == 0, ended.err
    (expected,) = json.loads(ended.out)["rows"]
    (explained,) = model.explain("a superb film")
    assert as_json(explained.as_record())["explanations"][0]["words"] == expected["explanations"][0]["words"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"txt": "a"}], r"no column 'text'; there are 'txt' \(row\)"),
        ([{"text": "a"}, {"other": "b"}], r"no column 'text', unlike in row 1; there are 'other' \(row:2\)"),
        (["a", None], r"None is not a row \(row:2\)"),
        ([{"text": "a"}, {"text": None}], r"None is not text \(row:2, column 'text'\)"),
        (pandas.DataFrame({"text": ["a", None]}), r"nan is not text \(row:2, column 'text'\)"),
        (["a", "b\0"], r"a NUL character \(row:2, column 'text'\)"),
        ([("a", "b")], r"2 values \(row:1\) - pass text, in this order, or a dictionary of columns"),
        (7, "7 is not a row - pass texts, tuples, dictionaries or a DataFrame"),
        ([{"text": "a", "prediction": 1}], r"predictions have a column of the same name \(row, column"),
    ],
)
def test_a_wrong_row_is_told_in_one_line(model, rows, message):
    with pytest.raises(DataError, match=message) as raised:
        model.predict(rows)
    assert "\n" not in str(raised.value)
    assert model.predict("a good film")  # it goes on


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("runs/none", ModelError, "no such run: runs/none - `bertkit runs list` shows"),
        ("cola", ModelError, "no such run: cola"),
        ("{tiny}", UsageError, r"no recipe.yaml in the model folder.* - name a run folder, or the recipe: load\("),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told_in_one_line(name, error, message, here, tiny_model):
    with pytest.raises(BertkitError, match=message) as raised:
        bertkit.load(name.format(tiny=tiny_model))
    assert type(raised.value) is error


def test_no_rows_have_no_answers(model):
    assert (model.predict([]), model({"text": []})) == ([], {"text": []})


def test_a_notebook_shows_a_table(model):
    shown = model.predict(["a good <b>film</b>"] * 60)._repr_html_()
    assert "<th>prediction</th>" in shown
    assert "a good &lt;b&gt;film&lt;/b&gt;" in shown
    assert "<p>10 more</p>" in shown


def test_progress_is_shown_to_who_asks(model):
    class PruningPlan(Silent):
        done = 0

        def update(self, done, figures):
            self.done = done

    progress = PruningPlan()
    model.predict(TEXTS, progress=progress)
    assert progress.done == len(TEXTS)
