"""What the commands of `bertkit recipes` print and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from bertkit.recipe import find_recipe


def test_every_shipped_recipe_is_listed_with_what_it_is_about(run):
    printed = json.loads(run("recipes", "list", "--json").out)["recipes"]
    folder = Path(__file__).parents[3] / "recipes"
    assert sorted(printed) == sorted(file.stem for file in folder.glob("*/*.yaml"))
    assert all(printed.values())


def test_the_list_has_fine_tuning_before_pretraining_on_whole_lines(run):
    lines = run("recipes", "list").out.splitlines()
    assert any(len(line) > 80 for line in lines)  # whole, for grep
    fine_tuning, pretraining = lines.index("Fine-tuning"), lines.index("Pretraining")
    names = [line.split()[0] for line in lines[pretraining + 1 :]]
    assert fine_tuning == 0 and lines[pretraining - 1] == "" and "clm" in names and "cola" not in names
    assert any(re.match("cola +Is this English sentence grammatical[?]", line) for line in lines)


def test_a_recipe_is_shown_with_its_defaults_and_changes(run):
    shown = run("recipes", "show", "cola", "--set", "training.epochs=1").out
    printed = json.loads(run("recipes", "show", "cola", "--set", "training.epochs=1", "--json").out)["recipe"]
    assert "epochs: 1.0" in shown
    assert printed["training"]["epochs"] == 1
    assert printed["training"]["schedule"] == "linear"
    assert yaml.safe_load(shown)["data"] == printed["data"]


def test_a_pretraining_recipe_is_shown_too(run):
    assert "objective: mlm" in run("recipes", "show", "mlm").out


@pytest.mark.parametrize(("recipe", "command"), [("cola", "finetune"), ("bert", "pretrain")])
def test_a_copy_is_the_file_itself_and_names_the_next_command(run, recipe, command):
    ended = run("recipes", "copy", recipe, "mine.yaml")
    assert ended.out.splitlines()[-1] == f"  bertkit {command} mine.yaml"
    assert Path("mine.yaml").read_bytes() == find_recipe(recipe).read_bytes()


def test_the_folder_of_a_copy_is_created(run):
    assert run("recipes", "copy", "cola", "my/own/cola.yaml").code == 0
    assert Path("my/own/cola.yaml").is_file()
    Path("file").touch()
    ended = run("recipes", "copy", "cola", "file/cola.yaml")
    expected = "error: cannot be written: File exists (file/cola.yaml) - choose another name"
    assert (ended.code, ended.last) == (6, expected)


def test_a_file_that_exists_is_never_overwritten(run):
    Path("mine.yaml").write_text("mine")
    ended = run("recipes", "copy", "cola", "mine.yaml")
    expected = "error: mine.yaml exists already - name another file; nothing was written"
    assert (ended.code, ended.last) == (2, expected)
    assert Path("mine.yaml").read_text() == "mine"


@pytest.mark.parametrize("recipe", ["cola", "bert"])
def test_a_good_recipe_is_valid(run, recipe):
    assert run("recipes", "check", recipe).out == f"{recipe}  valid\n"
    assert json.loads(run("recipes", "check", recipe, "--json").out)["checked"] == {recipe: "valid"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cola", "--set", "metrics=[acuracy]"], "no metric is called 'acuracy'"),
        (["mlm", "--set", "options.nothing=1"], "unknown key 'options.nothing'"),
    ],
)
def test_a_bad_recipe_is_refused(run, arguments, message):
    ended = run("recipes", "check", *arguments)
    assert ended.code == 2
    assert message in ended.last
