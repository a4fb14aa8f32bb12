"""What is given later wins over a setting that no longer fits; what was given at the same time is refused."""

from __future__ import annotations

import json

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import load_pretrain_recipe, load_recipe, parse_changes, recipe_names


def loaded(name, *assignments):
    load = load_pretrain_recipe if name in recipe_names("pretrain") or name == "text.yaml" else load_recipe
    return load(name, parse_changes(assignments))


@pytest.mark.parametrize(
    ("name", "typed", "key", "value", "line"),
    [
        (
            "bert",
            "training.max_length=64",
            "short_length",
            None,
            "training.max_length 64 does not go with the recipe's training.short_length 128, which is left out",
        ),
        (
            "bert",
            "training.epochs=2",
            "steps",
            None,
            "training.epochs 2 does not go with the recipe's training.steps 1_000_000, which is left out",
        ),
        (
            "text.yaml",
            "training.batch_size=12",
            "gradient_accumulation",
            6,
            "training.batch_size 12 does not go with the recipe's training.gradient_accumulation 8, which is now 6",
        ),
        (
            "text.yaml",
            "training.steps=5",
            "budget",
            None,
            "training.steps 5 does not go with the recipe's training.budget 10m, which is left out",
        ),
        (
            "text.yaml",
            "training.torch_compile=true",
            "unpad",
            "auto",
            "training.torch_compile true does not go with the recipe's training.unpad true, which is now auto",
        ),
        (
            "text.yaml",
            "training.cuda_graphs=true",
            "unpad",
            "auto",
            "training.cuda_graphs true does not go with the recipe's training.unpad true, which is now auto",
        ),
    ],
)
def test_what_is_typed_wins_over_the_recipe_with_one_line(here, caplog, name, typed, key, value, line):
    (here / "text.yaml").write_text("extends: bert\ntraining: {gradient_accumulation: 8, budget: 10m, unpad: true}\n")
    training = loaded(name, typed).training
    assert getattr(training, key) == value
    assert [record.getMessage() for record in caplog.records] == [line]
    written, _, number = typed.partition("=")
    assert getattr(training, written.split(".")[1]) == json.loads(number)


def test_another_schedule_leaves_out_the_decay_of_the_recipe(here, caplog):
    settings = "{schedule: warmup_stable_decay, decay_ratio: 0.2}"
    (here / "text.yaml").write_text(f"extends: bert\ntraining: {settings}\n")
    assert loaded("text.yaml", "training.schedule=cosine").training.decay_ratio is None
    assert loaded("text.yaml", "training.schedule=warmup_stable_decay").training.decay_ratio == 0.2
    line = "training.schedule cosine does not go with the recipe's training.decay_ratio 0.2, which is left out"
    assert [record.getMessage() for record in caplog.records] == [line]


def test_the_best_metric_is_one_of_the_metrics_that_were_typed(caplog):
    assert loaded("stsb", "metrics=[pearsonr, mean_squared_error]").best_metric == "pearsonr"
    assert "best_metric spearmanr, which is now pearsonr" in caplog.text
    caplog.clear()
    assert loaded("stsb", "metrics=[pearsonr, spearmanr]").best_metric == "spearmanr"
    assert loaded("stsb", "metrics=[pearsonr]", "best_metric=r2").best_metric == "r2"  # refused by its task family
    assert not caplog.records


def test_a_recipe_of_ones_own_wins_over_its_parent(here, caplog):
    (here / "text.yaml").write_text("extends: bert\ntraining:\n  max_length: 100\n  epochs: 2\n")
    training = loaded("text.yaml").training
    assert (training.max_length, training.short_length, training.steps, training.epochs) == (100, None, None, 2)
    assert len(caplog.records) == 2


def test_two_settings_that_were_given_together_are_refused(here):
    fault = r"training.short_length = 128 is wrong: must be less than training.max_length \(64\)"
    with pytest.raises(RecipeError, match=fault):
        loaded("bert", "training.max_length=64", "training.short_length=128")
    (here / "text.yaml").write_text("extends: mlm\ntraining:\n  max_length: 64\n  short_length: 128\n")
    with pytest.raises(RecipeError, match=rf"{fault}.*\(text.yaml:4\)"):
        loaded("text.yaml")
    with pytest.raises(RecipeError, match=r"must be less than training.max_length \(128\)"):
        loaded("electra", "training.short_length=128")  # the recipe's only length is not a thing to leave out


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("bert", "training.max_length=256"),
        ("bert", "training.steps=5"),
        ("bert", "training.batch_size=7"),
        ("cola", "training.epochs=1"),
        ("cola", "metrics=[accuracy]"),
    ],
)
def test_settings_that_fit_are_left_as_they_are(caplog, name, typed):
    loaded(name, typed)
    assert not caplog.records


@pytest.mark.parametrize("typed", ["training.max_length=long", "training.batch_size=0", "training.max_length=[1]"])
def test_a_value_of_the_wrong_type_is_refused_as_ever(here, typed):
    (here / "text.yaml").write_text("extends: bert\ntraining: {gradient_accumulation: 8}\n")
    with pytest.raises(RecipeError, match=typed.split("=")[0]):
        loaded("text.yaml", typed)


def test_a_section_given_whole_in_python_counts_as_given():
    training = load_pretrain_recipe("bert", {"training": {"max_length": 64, "epochs": 1}}).training
    assert (training.max_length, training.short_length, training.steps) == (64, None, None)


def test_the_records_know_what_the_user_gave(here):
    assert loaded("bert").training.model_fields_set == set()
    assert loaded("bert", "training.max_length=256").training.model_fields_set == {"max_length"}
    (here / "text.yaml").write_text("extends: bert\ntraining:\n  batch_size: 8\n")
    assert loaded("text.yaml", "training.steps=5").training.model_fields_set == {"batch_size", "steps"}
