"""Fine-tuning from a program: rows in memory make the run that the same rows in a file make."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pandas
import pytest

import bertkit
from bertkit.errors import DataError, RecipeError, UsageError
from bertkit.recipe import load_recipe
from tests.conftest import toy_rows, write_csv

pytestmark = pytest.mark.usefixtures("here")

TRAIN, VALIDATION = toy_rows(48, seed=1), toy_rows(20, seed=2)
TRAINING = {"epochs": 1, "batch_size": 16, "learning_rate": 3e-3, "precision": "fp32", "log_every": 1}


def train(model, data, output, **options):
    return bertkit.finetune("classify", model=model, data=data, training=TRAINING, output=output, **options)


def identity(folder):
    return json.loads((Path(folder) / "run.json").read_text())["identity"]


def test_rows_in_memory_are_those_of_a_file(tiny_model):
    heard = []
    results = train(tiny_model, pandas.DataFrame(TRAIN), "memory", events=heard.append)
    from_file = train(tiny_model, write_csv(Path("train.csv"), TRAIN), "file")
    assert identity("memory") == identity("file")
    assert results.scores == from_file.scores == results[0].scores
    assert heard == [json.loads(line) for line in Path("memory/metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in heard if "loss" in entry] == [1, 2, 3]
    assert [entry["step"] for entry in heard if "eval_loss" in entry] == [3]
    assert results.report == Path("memory/report.html") and results.report.is_file()
    assert results.model.labels == ("bad", "good")
    assert results.model is results.model
    assert "<td>f1_macro</td>" in results._repr_html_()
    assert load_recipe("memory/recipe.yaml").data.source == ""  # nobody is sent to a file that is not there


@pytest.mark.slow
def test_splits_have_their_names(tiny_model):
    splits = {"train": datasets.Dataset.from_list(TRAIN), "dev": VALIDATION}
    results = train(tiny_model, splits, "splits")
    assert (results[0].split, results[0].rows) == ("validation", 20)
    write_csv(Path("data/train.csv"), TRAIN), write_csv(Path("data/validation.csv"), VALIDATION)
    assert train(tiny_model, Path("data"), "folder").scores == results.scores
    assert identity("splits") == identity("folder")
    both = datasets.DatasetDict({"train": splits["train"], "validation": datasets.Dataset.from_list(VALIDATION)})
    again = train(tiny_model, both, "splits")  # finished: nothing is trained
    assert again.scores == results.scores


def test_a_finished_run_is_not_taken_for_one_of_other_rows(tiny_model):
    train(tiny_model, TRAIN, "run")
    with pytest.raises(UsageError, match="run"):
        train(tiny_model, TRAIN[:40], "run")
    assert train(tiny_model, TRAIN[:40], "run", restart=True)[0].rows < 20


def test_a_loaded_recipe_is_taken_as_it_is(tiny_model):
    changes = {f"training.{key}": value for key, value in TRAINING.items()}
    loaded = load_recipe("classify", {"model": str(tiny_model), **changes})
    results = bertkit.finetune(loaded, data=TRAIN, output="run")
    assert [result.split for result in results] == ["validation"]
    with pytest.raises(UsageError, match=r"changes of a loaded recipe: training.epochs"):
        bertkit.finetune(loaded, data=TRAIN, training={"epochs": 2})


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (
            pandas.DataFrame({"txt": ["a"], "label": ["x"]}),
            DataError,
            r"no column 'text'; there are 'txt', 'label' \(row",
        ),
        ([{"text": "a", "label": "x"}, {"text": None, "label": "y"}], DataError, r"None is not text \(row:2"),
        ({"validation": TRAIN}, DataError, r"no train split \(found: validation\)"),
        ([], DataError, "data has no rows"),
        (
            {"text": ["a", "b"], "label": ["x", "y"]},
            DataError,
            r"a dictionary of columns: text, label - pass datasets.Dataset.from_dict\(DATA\)",
        ),
        (["a"], DataError, r"'a' is not a row \(row:1\) - pass a dictionary of columns per row"),
        (7, DataError, "7 is not a row - pass texts, tuples, dictionaries or a DataFrame"),
        ("none.csv", DataError, "no such file or folder"),
    ],
)
def test_wrong_rows_are_told_in_one_line(tiny_model, data, error, message):
    with pytest.raises(error, match=message) as raised:
        train(tiny_model, data, "run")
    assert "\n" not in str(raised.value)
    assert not Path("run").exists()


def test_a_wrong_key_is_told_as_the_command_does(tiny_model):
    with pytest.raises(RecipeError, match=r"epoch.* did you mean epochs\?"):
        bertkit.finetune("classify", model=tiny_model, data=TRAIN, training={"epoch": 1})


@pytest.mark.slow
def test_seeds_are_trained_on_rows_in_memory_one_after_the_other_and_at_once(tiny_model):
    changes = {f"training.{key}": value for key, value in TRAINING.items()}
    loaded = bertkit.with_rows(load_recipe("classify", {"model": str(tiny_model), **changes}), pandas.DataFrame(TRAIN))
    in_turn, error = bertkit.finetune_seeds(loaded, (1, 2), output="turn")
    at_once, _ = bertkit.finetune_seeds(loaded, (1, 2), output="once", jobs=2)
    assert error is None
    assert [run.scores for run in in_turn.runs] == [run.scores for run in at_once.runs]
    changed = load_recipe("classify", {"model": str(tiny_model), **changes, "training.seed": 2})
    assert bertkit.finetune(changed, data=TRAIN, output="two").scores == in_turn.runs[1].scores["validation"]
