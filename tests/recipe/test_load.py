"""Recipes found, extended, overridden, and refused with the line or the override that is wrong."""

from __future__ import annotations

import contextlib

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import (
    find_recipe,
    format_assignment,
    load_any_recipe,
    load_pretrain_recipe,
    load_recipe,
    parse_changes,
    recipe_command,
    recipe_names,
)
from tests.kills import slow_unless


def test_the_command_of_a_recipe_is_where_it_lies_and_what_it_names(here):
    assert {recipe_command(name) for name in recipe_names()} == {"finetune"}
    assert {recipe_command(name) for name in recipe_names("pretrain")} == {"pretrain"}
    (here / "mine.yaml").write_text("extends: mlm\n")
    assert recipe_command("mine.yaml") == "pretrain"
    assert load_any_recipe("mine.yaml") == load_pretrain_recipe("mine.yaml")


def test_a_recipe_is_found_by_name_or_path(here):
    assert find_recipe("cola").parts[-2:] == ("finetune", "cola.yaml")
    assert find_recipe("mlm", "pretrain").parts[-2:] == ("pretrain", "mlm.yaml")
    with pytest.raises(RecipeError, match="did you mean cola"):
        find_recipe("colla")
    with pytest.raises(RecipeError, match=r"no such recipe file \(mine.yaml\)"):
        find_recipe("mine.yaml")


@pytest.mark.parametrize(
    ("command", "name", "other"), [("finetune", "mlm", "pretrain"), ("pretrain", "rte", "finetune")]
)
def test_a_recipe_of_the_other_command_is_named(command, name, other):
    with pytest.raises(RecipeError, match=f"'{name}' is a recipe of `bertkit {other}`"):
        find_recipe(name, command)


def test_a_child_overrides_key_by_key_and_inherits_neither_name_nor_published_scores(here):
    (here / "mine.yaml").write_text("extends: cola\ntraining: {seed: 7}\n")
    mine, cola = load_recipe("mine.yaml"), load_recipe("cola")
    assert (mine.name, mine.published) == ("mine", [])
    assert mine.training == cola.training.model_copy(update={"seed": 7})
    assert mine.data == cola.data


def test_a_parent_may_lie_beside_its_child(here):
    (here / "above.yaml").write_text("extends: cola\ntraining: {seed: 7, epochs: 1}\n")
    (here / "below.yaml").write_text("extends: above.yaml\ntraining: {epochs: 2}\n")
    training = load_recipe("below.yaml").training
    assert (training.seed, training.epochs) == (7, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.epoch=1", "unknown key 'training.epoch' - did you mean epochs?"),
        ("epochs=1", "unknown key 'epochs' - write training.epochs"),
        ("training.epochs=0", "training.epochs = 0 is out of range - give a number above 0 and at most 10,000"),
        ("training.precision=fp8", "training.precision = 'fp8' is wrong: must be 'auto', 'fp32' or 'bf16'"),
        (
            "distillation.temperature=0",
            "distillation.temperature = 0 is out of range - give a number above 0 and at most 1,000",
        ),
        ("metrics=[]", "metrics = [] is wrong: "),
        ("labels=[a, a]", "labels = ['a', 'a'] is wrong: label names must be distinct"),
    ],
)
def test_a_wrong_override_is_named_without_a_file(change, message):
    with pytest.raises(RecipeError) as raised:
        load_recipe("cola", parse_changes([change]))
    assert str(raised.value).startswith(message)


def test_a_wrong_line_is_named(here):
    (here / "mine.yaml").write_text("extends: cola\ntraining:\n  epochs: 1\n  batch_size: 0\n")
    with pytest.raises(RecipeError, match=r"training.batch_size = 0 is out of range \(mine.yaml:4\)"):
        load_recipe("mine.yaml")


@pytest.mark.parametrize("text", ["review", " a", "no", "1", "true", "a'b", "[x]"])
def test_an_assignment_is_read_back_by_shell_and_yaml(text):
    import shlex

    (word,) = shlex.split(format_assignment("data.columns.text", text))
    assert parse_changes([word]) == {"data.columns.text": text}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "about=&x",
            "--set about: anchors and aliases are not supported - repeat the value; for text: 'about=\"&x\"'",
        ),
        ("training.seed=" + "9" * 5000, "--set training.seed: a number of 5,000 digits - at most 100 are read"),
        ("x" * 5000, "--set " + "x" * 77 + "... is not key=value"),
    ],
)
def test_an_assignment_that_cannot_be_read_says_what_to_write(change, message):
    with pytest.raises(RecipeError) as raised:
        parse_changes([change])
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("text", ["&x", "!x", "{a: 1, a: 2}", "#x", "9" * 200])
def test_what_recipes_do_not_use_of_yaml_is_quoted_in_an_assignment(text):
    import shlex

    (word,) = shlex.split(format_assignment("about", text))
    assert parse_changes([word]) == {"about": text}


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", ".", "", "a\x1b[31m", "x" * 201])
@pytest.mark.parametrize("recipe", ["cola", "mlm"])
def test_a_name_never_leads_out_of_the_runs(recipe, name):
    with pytest.raises(RecipeError, match=r"^name = .* is wrong: must be a plain name of at most 200 bytes"):
        load_any_recipe(recipe, {"name": name})


OWN = """extends: sst2
model: me/mine
model_labels: [no, yes]
data:
  source: me/set
  config: small
  revision: v1
  files: {train: a.csv}
  splits: {validation: dev}
  columns: {text: review}
distillation: {teachers: [me/large], student_layers: 2}
"""


@pytest.mark.parametrize("load", [load_recipe, load_any_recipe])
def test_another_source_drops_what_is_of_the_old_one(here, load):
    (here / "own.yaml").write_text(OWN)
    data = load("own.yaml", {"data.source": "you/set"}).data
    assert (data.config, data.revision, data.files, data.splits) == (None, None, {}, {})
    assert data.columns["text"] == "review"  # of the task
    assert load("own.yaml", {"data.source": "me/set"}) == load("own.yaml")
    data = load("own.yaml", {"data.source": "you/set", "data.config": "large", "data.splits.validation": "val"}).data
    assert (data.config, data.revision, data.splits) == ("large", None, {"validation": "val"})


def test_a_shipped_recipe_takes_another_data_set_of_the_hub():
    for name in recipe_names():
        data = load_recipe(name, {"data.source": "you/set"}).data
        assert (data.config, data.revision, data.files, data.splits) == (None, None, {}, {})


@pytest.mark.parametrize("name", ["mrpc", "pos"])
def test_the_demo_has_rows_for_the_data_set_of_a_recipe(name):
    own = load_recipe(name).data
    assert load_recipe(name, {"data.source": "demo"}).data.config == own.config is not None


def test_names_of_splits_are_kept_where_the_other_source_has_them(here):
    names = load_recipe("mnli").data.splits
    assert load_recipe("mnli", {"data.source": "demo"}).data.splits == names
    (here / "copy" / "data").mkdir(parents=True)
    for split in ("train", "validation_matched", "validation_mismatched"):
        (here / "copy" / "data" / f"{split}-00000-of-00001.parquet").touch()
    kept = load_recipe("mnli", {"data.source": "copy"}).data.splits
    assert kept == {name: names[name] for name in ("validation", "validation_mismatched")}
    (here / "own").mkdir()
    (here / "own" / "validation.csv").touch()
    assert load_recipe("mnli", {"data.source": "own"}).data.splits == {}


def test_another_model_drops_what_is_of_the_old_one(here):
    (here / "own.yaml").write_text(OWN)
    recipe = load_recipe("own.yaml", {"model": "you/theirs"})
    assert (recipe.model_labels, recipe.distillation.student_layers) == (None, None)
    assert recipe.model_name == "you/theirs"
    assert recipe.distillation.teachers == ["me/large"]
    assert load_recipe("own.yaml", {"model": "me/mine"}) == load_recipe("own.yaml")
    assert load_recipe("own.yaml", {"model": "you/theirs", "model_labels": ["a", "b"]}).model_labels == ["a", "b"]


def test_a_checkpoint_drops_what_is_of_a_new_model(here):
    (here / "own.yaml").write_text("extends: mlm\ntokenizer: tok\nmodel_options: {hidden_dropout_prob: 0}\n")
    recipe = load_pretrain_recipe("own.yaml", {"model": "me/mine"})
    assert (recipe.tokenizer, recipe.model_options) == (None, {})


def test_another_text_drops_what_is_of_the_old_one():
    data = load_pretrain_recipe("mlm", {"data.source": "you/text"}).data
    assert (data.config, data.documents) == (None, "auto")
    assert load_pretrain_recipe("mlm", {"data.source": "you/text", "data.documents": "lines"}).data.documents == "lines"


@pytest.mark.parametrize("child", ["data: {source: you/text}", "data: {files: {train: a.txt}}"])
def test_a_recipe_with_text_of_its_own_drops_what_is_of_its_parents_text(here, child):
    (here / "mine.yaml").write_text(f"extends: mlm\n{child}\n")
    mine, typed = load_pretrain_recipe("mine.yaml").data, load_pretrain_recipe("mlm", {"data.source": "you/text"}).data
    assert mine.documents == typed.documents == "auto"
    assert mine == typed or mine.files == {"train": "a.txt"}
    (here / "below.yaml").write_text("extends: mlm\ntraining: {epochs: 1}\n")
    assert load_pretrain_recipe("below.yaml").data == load_pretrain_recipe("mlm").data


def test_a_recipe_with_rows_of_its_own_drops_what_is_of_its_parents_rows(here):
    (here / "own.yaml").write_text(OWN)
    (here / "mine.yaml").write_text("extends: own.yaml\ndata: {source: you/set, config: large}\nmodel: you/theirs\n")
    typed = load_recipe("own.yaml", {"data.source": "you/set", "data.config": "large", "model": "you/theirs"})
    assert load_recipe("mine.yaml") == typed.model_copy(update={"name": "mine"})


@pytest.mark.parametrize("changes", [{"data.files.train": "a.txt"}, {"data.files": {"train": "a.txt"}}])
def test_named_training_files_bring_their_own_documents(changes):
    assert load_pretrain_recipe("mlm", changes).data.documents == "auto"
    assert load_pretrain_recipe("mlm", {"data.files.validation": "a.txt"}).data.documents == "articles"


VALUES = [True, 1, -1.5, "x", [1], {"x": 1}, {1: 2}, None, "\ud800", {"\ud800": 1}]


@pytest.mark.parametrize("value", slow_unless([-1.5, [1], {"x": 1}, None, "\ud800"], VALUES))
@pytest.mark.parametrize(
    "base",
    [{}, pytest.param({"data.source": "demo", "model": "demo"}, marks=pytest.mark.slow)],
    ids=["own", "demo"],
)
def test_any_value_of_any_key_is_taken_or_refused_in_one_line(value, base):
    recipe = load_recipe("sst2")
    keys = [*type(recipe).model_fields, *(f"data.{name}" for name in type(recipe.data).model_fields)]
    keys += [f"training.{name}" for name in type(recipe.training).model_fields]
    for key in [*keys, "\ud800", "data.\ud800", "data.files.train", "options.x"]:
        with contextlib.suppress(RecipeError):
            load_recipe("sst2", {**base, key: value})


def test_a_limit_is_a_number_that_python_can_count_to():
    with pytest.raises(RecipeError, match=r"data.limit = 9223372036854775808 is out of range"):
        load_recipe("sst2", {"data.limit": 2**63})
