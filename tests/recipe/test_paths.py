"""Homes in paths: expanded once, wherever a path is typed, and never again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import RecipeError, UsageError
from bertkit.recipe import expand_path, load_pretrain_recipe, load_recipe
from bertkit.storage.cache import cache_folder


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home of the test's own."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_a_home_is_expanded_at_the_beginning_only(home):
    assert expand_path("~/runs/x") == home / "runs/x"
    assert expand_path("~root/x") == Path("~root").expanduser() / "x"
    for name in ("runs/~x", "./~/x", "x~"):
        assert expand_path(name) == Path(name)


def test_every_key_that_may_be_a_path_is_expanded(home):
    changes = {
        "model": "~/m",
        "data.source": "~/d",
        "data.files": {"train": "~/t.csv"},
        "distillation.teachers": ["~/t"],
    }
    recipe = load_recipe("cola", changes)
    assert (recipe.model, recipe.data.source) == (f"{home}/m", f"{home}/d")
    assert (recipe.data.files, recipe.distillation.teachers) == ({"train": f"{home}/t.csv"}, [f"{home}/t"])
    pretraining = load_pretrain_recipe("mlm", {"tokenizer": "~/tok", "data.source": "~/d", "data.files.train": "~/t"})
    assert (pretraining.tokenizer, pretraining.data.source) == (f"{home}/tok", f"{home}/d")
    assert pretraining.data.files == {"train": f"{home}/t"}
    assert load_pretrain_recipe("mlm", {"model": "~/m"}).model == f"{home}/m"


def test_names_of_the_hub_stay_as_they_are():
    recipe = load_recipe("cola", {"model": "org/name", "data.source": "org/set/"})
    assert (recipe.model, recipe.data.source) == ("org/name", "org/set/")


def test_recipes_and_the_cache_may_be_in_a_home(home, monkeypatch):
    (home / "mine.yaml").write_text("extends: ~/theirs.yaml\n")
    (home / "theirs.yaml").write_text("extends: cola\nabout: theirs\n")
    assert load_recipe("~/mine.yaml").about == "theirs"
    with pytest.raises(RecipeError, match="no such recipe file"):
        load_recipe("~/other.yaml")
    monkeypatch.setenv("BERTKIT_CACHE", "~/cache")
    assert cache_folder("features") == home / "cache" / "features"


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "cola", "--model", "demo", "--data", "demo", "--output=~unknown/x"],
        ["finetune", "cola", "--data=~unknown/x"],
        ["finetune", "~unknown/x.yaml"],
        ["eval", "cola", "--model=~unknown/x"],
        ["predict", "cola", "--model", "demo", "--text", "x", "--output=~unknown/x.csv"],
        ["fill-mask", "--file=~unknown/x.txt", "--model", "demo"],
        ["pretrain", "mlm", "--data", "demo", "--tokenizer=~unknown/x"],
        ["pretrain", "tokenizer", "--data", "demo", "--output=~unknown/x"],
        ["recipes", "copy", "cola", "~unknown/x.yaml"],
    ],
    ids=" ".join,
)
def test_the_home_of_nobody_ends_in_one_line(run, words):
    ended = run(*words)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert f"~unknown is not the home directory of a user - write {Path.cwd()}/~unknown/x" in ended.last
    assert list(Path().iterdir()) == []


def test_files_are_written_and_read_in_a_home(run, home, trained):
    assert run("recipes", "copy", "cola", "~/mine.yaml").code == 0
    (home / "rows.csv").write_text("text,label\na good film,good\n")
    arguments = ["--model", trained, "--output", "~/out"]
    assert run("predict", "classify", "~unknown/rows.csv", *arguments).code == 2
    assert run("predict", "classify", "~/rows.csv", *arguments[:3], "~/out.csv").code == 0
    assert run("eval", "classify", "--data=~/rows.csv", "--split", "all", *arguments).code == 0
    assert run("pretrain", "tokenizer", "--data", "demo", "--limit", 99, "--output", "~/tok").code == 0
    assert {"mine.yaml", "out.csv", "out", "tok"} <= {entry.name for entry in home.iterdir()}
    assert (home / "out" / "predictions_all.jsonl").is_file()
    assert list(Path().iterdir()) == []


def test_what_is_no_home_raises_a_usage_error():
    with pytest.raises(UsageError, match="~unknown is not the home directory of a user"):
        expand_path("~unknown")
