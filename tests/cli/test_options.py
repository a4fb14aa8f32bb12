"""The options that commands share, and the recipe that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from bertkit.cli.completion import complete_recipe
from bertkit.cli.options import TRAINING_OPTIONS, find_checkpoint, get_zero_shot_task, recipe_options
from bertkit.errors import RecipeError, UsageError
from bertkit.recipe import load_pretrain_recipe, load_recipe

OWN = """extends: classify
data: {source: mine, files: {train: a.csv}}
"""


def test_recipes_are_completed_by_their_first_letters():
    assert complete_recipe("sq") == ["squad", "squad2"]
    assert complete_recipe("nothing") == []


@pytest.fixture
def changes_of():
    """Return the changes that a command of a recipe's options gets from its arguments."""

    @recipe_options("model", *TRAINING_OPTIONS, "report_to")
    def command(changes: dict[str, Any], output: str = "") -> None:
        given.append((changes, output))

    given = []
    app = typer.Typer()
    app.command()(command)

    def change(*arguments):
        app(list(arguments), standalone_mode=False)
        return given.pop()

    return change


def test_an_option_that_is_left_out_keeps_the_value_of_the_recipe(changes_of):
    changes, output = changes_of("--limit", "10", "--learning-rate", "1e-3", "--output", "here")
    assert (changes, output) == ({"data.limit": 10, "training.learning_rate": 1e-3}, "here")
    recipe = load_recipe("cola", changes)
    assert (recipe.data.source, recipe.data.limit) == ("nyu-mll/glue", 10)
    assert (recipe.training.epochs, recipe.training.learning_rate) == (3, 1e-3)


def test_every_option_sets_its_key(changes_of):
    typed = "--model m --data d --epochs auto --batch-size 8 --max-length 9 --seed 0 --report-to a --report-to b"
    assert changes_of(*typed.split())[0] == {
        "model": "m",
        "data.source": "d",
        "training.epochs": "auto",
        "training.batch_size": 8,
        "training.max_length": 9,
        "training.seed": 0,
        "training.report_to": ["a", "b"],
    }


def test_set_wins_over_an_option(changes_of):
    changes, _ = changes_of("--set", "training.epochs=5", "--epochs", "2")
    assert load_recipe("cola", changes).training.epochs == 5


def test_another_source_drops_the_files_of_the_recipe(here):
    Path("own.yaml").write_text(OWN)
    assert load_recipe("own.yaml").data.files == {"train": "a.csv"}
    assert load_recipe("own.yaml", {"data.source": "other"}).data.files == {}
    changes = {"data.source": "other", "data.files.test": "b.csv"}
    assert load_recipe("own.yaml", changes).data.files == {"test": "b.csv"}


def test_another_text_drops_the_config_of_the_recipe():
    assert load_pretrain_recipe("mlm").data.config == "wikitext-103-raw-v1"
    data = load_pretrain_recipe("mlm", {"data.source": "text.txt"}).data
    assert (data.config, data.documents) == (None, "auto")


def test_epochs_replace_the_steps_of_a_pretraining_recipe():
    assert load_pretrain_recipe("mlm").training.steps == 100_000
    training = load_pretrain_recipe("mlm", {"training.epochs": 2}).training
    assert (training.steps, training.epochs) == (None, 2)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(RecipeError, match="colla"):
        load_recipe("colla")


def test_a_run_brings_its_recipe_and_a_recipe_needs_a_checkpoint(here):
    for folder in ("runs/mine", "cola"):
        Path(folder).mkdir(parents=True)
        Path(folder, "recipe.yaml").write_text("extends: classify\n")
    assert find_checkpoint("runs/mine", None) == ("runs/mine/recipe.yaml", "runs/mine")
    assert find_checkpoint("runs/mine/recipe.yaml", "demo") == ("runs/mine/recipe.yaml", "demo")
    assert find_checkpoint("cola", "demo") == ("cola", "demo")  # the shipped recipe, not the folder
    assert find_checkpoint("./cola", None) == ("cola/recipe.yaml", "./cola")
    with pytest.raises(UsageError, match="cola is a recipe, which has no checkpoint - give a run, or add --model RUN"):
        find_checkpoint("cola", None)
    with pytest.raises(
        UsageError, match=r"--model demo cannot replace the model of the run runs/mine - leave --model "
    ):
        find_checkpoint("runs/mine", "demo")
    with pytest.raises(UsageError, match=r"no recipe.yaml .* \(runs\) - name the recipe, .*: RECIPE --model runs"):
        find_checkpoint("runs", None)


def test_labels_are_described_only_for_a_recipe_that_classifies_texts():
    assert get_zero_shot_task("sst2") == get_zero_shot_task("mnli") == "zero_shot"
    with pytest.raises(
        UsageError, match="--zero-shot requires a recipe that classifies texts, but the task of squad is question"
    ):
        get_zero_shot_task("squad")
