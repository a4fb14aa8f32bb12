"""Models found by the names of their runs."""

from __future__ import annotations

import shutil

import pytest

from bertkit.errors import BertkitError, ModelError, UsageError
from bertkit.server.runs import find_models
from tests.runtime.hand_made import write_vectors


def test_a_run_has_the_name_of_its_folder_or_a_given_one(trained, sentence_folder):
    found = find_models([str(trained), f"other={trained}", str(sentence_folder)])
    assert [(model.name, model.saved is None, model.has_vectors) for model in found] == [
        ("run", False, False),
        ("other", False, False),
        ("vectors", True, True),
    ]


def test_a_folder_that_is_no_run_needs_a_recipe(tiny_model, trained, tmp_path):
    with pytest.raises(ModelError, match="nothing says how it reads rows"):
        find_models([str(tiny_model)])
    import shutil

    foreign = shutil.copytree(trained, tmp_path / "foreign", ignore=shutil.ignore_patterns("recipe.yaml", "run.json"))
    (model,) = find_models([str(foreign)], "classify")
    assert model.saved is not None
    assert set(model.saved.labels) == {"good", "bad"}


def test_a_recipe_that_no_model_needs_is_refused(trained):
    with pytest.raises(UsageError, match="--recipe cola, and each of these models has a recipe of its own"):
        find_models([str(trained)], "cola")


@pytest.mark.parametrize(
    "names, error, message",
    [
        (["runs/nix"], ModelError, "no such run: runs/nix"),
        (["{run}", "{run}"], UsageError, "two models are called 'run'"),
        (["a b={run}"], UsageError, "'a b' is no name for a model"),
    ],
)
def test_names_that_cannot_be_served(names, error, message, trained, here):
    with pytest.raises(BertkitError, match=message) as raised:
        find_models([name.format(run=trained) for name in names])
    assert isinstance(raised.value, error)


def test_a_folder_of_runs_names_them(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs" / "one")
    shutil.copytree(trained, tmp_path / "runs" / "two")
    with pytest.raises(ModelError, match=r"a folder of runs and no run itself \(one, two\).* e.g. .*runs/one"):
        find_models([str(tmp_path / "runs")])


def test_an_exported_model_of_vectors_predicts_and_embeds(tmp_path):
    write_vectors(tmp_path / "exported")
    (tmp_path / "exported" / "recipe.yaml").write_text("extends: similarity\n")
    (model,) = find_models([str(tmp_path / "exported")])
    assert model.saved is not None and model.has_vectors
