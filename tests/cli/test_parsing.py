"""Settings of a recipe as Hydra, spaCy and trl have them on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from bertkit.cli.parsing import SECTIONS
from bertkit.recipe import PretrainRecipe, Recipe, load_recipe


def shown(run, *arguments):
    ended = run("recipes", "show", *arguments, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["recipe"]


def test_the_sections_are_those_of_recipes():
    fields = {**Recipe.model_fields, **PretrainRecipe.model_fields}
    values = [getattr(recipe, name, None) for recipe in (load_recipe("cola"),) for name in fields]
    sections = {name for name, value in zip(fields, values, strict=True) if isinstance(value, (BaseModel, dict))}
    assert sections | {"distillation", "model_options"} == set(SECTIONS)


@pytest.mark.parametrize(
    "arguments",
    [
        "cola --set training.epochs=1 --set data.columns.text=a=b",
        "cola training.epochs=1 data.columns.text=a=b",
        "training.epochs=1 --data.columns.text=a=b cola",
        "--training.epochs 1 --data.columns.text a=b --config cola",
        "--config=cola training.epochs=2 --set training.epochs=3 data.columns.text=a=b --training.epochs 1",
    ],
)
def test_every_spelling_sets_the_same_keys_and_the_last_wins(run, arguments):
    recipe = shown(run, *arguments.split())
    assert (recipe["name"], recipe["training"]["epochs"]) == ("cola", 1)
    assert recipe["data"]["columns"]["text"] == "a=b"


def test_a_value_may_be_negative_or_yaml(run):
    recipe = shown(run, "cola", "--training.report_to", "[wandb]", "--options.threshold", "-1")
    assert recipe["training"]["report_to"] == ["wandb"]
    assert recipe["options"]["threshold"] == -1


def test_the_value_of_an_option_is_no_setting(run):
    ended = run("finetune", "cola", "--epochs", "training.epochs=1")
    assert ended.last.startswith("error: --epochs: 'training.epochs=1' is neither")
    ended = run("finetune", "cola", "--lr", "training.epochs=1")
    assert ended.last.startswith("error: --learning-rate: 'training.epochs=1' is neither")
    assert shown(run, "cola", "--set", "data.source=data.limit=5")["data"]["source"] == "data.limit=5"


def test_files_and_texts_are_no_settings(run):
    Path("data.limit=5").write_text("text\na\n")
    Path("a.b=c").write_text("text\na\n")
    for file in ("data.limit=5", "a.b=c"):
        ended = run("predict", "cola", file, "--text", "a", "--model", "demo")
        assert ended.last == "error: FILE and --text or --row are both given - leave one of them out"
    found = json.loads(run("tokenize", "data.limit=7", "--model", "demo", "--json").out)
    assert "7" in str(found)
    assert run("recipes", "show", "--", "training.epochs=1").last.startswith("error: no recipe is called 'training.ep")


def test_a_group_reads_the_recipe_that_config_names(run):
    ended = run("pretrain", "--config", "mlmm")
    assert ended.last == "error: no recipe is called 'mlmm' - did you mean mlm?"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("cola --training.epochs", "--training.epochs needs a value - write --training.epochs VALUE"),
        ("cola --training.epochs --json", "--training.epochs needs a value - write --training.epochs VALUE"),
        ("--config", "--config needs a value - write --config VALUE"),
        ("cola --training.epoch 1", "unknown key 'training.epoch' - did you mean epochs?"),
        ("cola training.epoch=1", "unknown key 'training.epoch' - did you mean epochs?"),
        ("cola --trainig.epochs 1", "no option is called --trainig.epochs - did you mean --training.epochs?"),
        ("cola trainig.epochs=1", "unexpected argument: trainig.epochs=1 - did you mean training.epochs=1?"),
        ("cola best_metric=f1", "unexpected argument: best_metric=f1 - write --set best_metric=f1"),
        ("cola learning_rate=0.1", "unexpected argument: learning_rate=0.1 - write --set training.learning_rate=0.1"),
        ("cola --config stsb", "--config stsb and cola both name a recipe - leave one of them out"),
        (
            "cola --foo.bar=1",
            "no option is called --foo.bar - the sections of a recipe are data, training, options, distillation, "
            "gates, model_options",
        ),
    ],
)
def test_mistakes_end_in_one_line(run, arguments, expected):
    ended = run("recipes", "show", *arguments.split())
    assert (ended.code, ended.last) == (2, f"error: {expected}")


def test_rows_in_the_place_of_an_option_are_a_mistake_with_the_option(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("text,label\na,b\n")
    ended = run("eval", "classify", "rows.csv")
    assert (ended.code, ended.last) == (2, "error: unexpected argument: rows.csv - write --data rows.csv")


@pytest.mark.parametrize(("typed", "is_fresh"), [("", True), (" True", True), ("=true", True), (" False", False)])
def test_flags_of_other_tools_may_have_a_value(run, tmp_path, typed, is_fresh):
    options = f"--seeds 2 --worker --overwrite_output_dir{typed}".split()
    ended = run("finetune", "classify", "--model", "demo", "--data", "demo", "--output", tmp_path / "set", *options)
    expected = "--restart and --worker are both given" if is_fresh else "there are no runs to join"
    assert ended.code == 2 and expected in ended.last
