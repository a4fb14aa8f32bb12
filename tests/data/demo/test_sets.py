"""A recipe's demo rows follow from what it says, not from its name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bertkit.data.demo import find_demo_set, read_demo_rows
from bertkit.data.sources import read_splits
from bertkit.errors import DataError
from bertkit.recipe import load, load_recipe, recipe_names
from bertkit.tasks import load_task
from tests.kills import slow_unless

GLUE = """about: A task of three lines.
task: text_classification
data:
  source: my/glue
  config: {config}
  columns: {columns}
labels: {labels}
metrics: [accuracy]
"""
DEMO = {"data.source": "demo", "data.limit": 50}
PAIR = "{text: first, text_pair: second, label: gold}"


def write(file: Path, **parts: str) -> str:
    file.write_text(GLUE.format(**{"config": "mine", "columns": "{text: sentence, label: gold}", **parts}))
    return str(file)


def test_every_shipped_recipe_has_rows_with_its_columns_and_labels():
    for name in recipe_names():
        recipe = load_recipe(name)
        demo_set = find_demo_set(recipe)
        assert set(recipe.data.columns) <= {*demo_set.columns, "id"}, name
        assert recipe.labels is None or set(recipe.labels) == set(demo_set.labels), name
        assert [*read_demo_rows(recipe, "train", 1)[0]] == [*demo_set.columns], name


def test_recipes_have_the_set_of_their_name_or_that_of_a_twin():
    twins = {
        **{"classify": "sst2", "few-shot": "sst2", "similarity": "stsb", "regress": "stsb"},
        **{"sparse": "similarity-pairs", "late-interaction": "similarity-pairs"},
        **{"tag": "ner", "ner-features": "ner", "wikiann": "ner", "qa": "squad", "wsd-nearest": "wsd"},
        **{"xnli": "mnli", "paws-x": "topics"},
    }
    for name in recipe_names():
        assert find_demo_set(load_recipe(name)).name == twins.get(name, name)


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A folder with the shipped recipes, and with a copy of each."""
    folder = Path(shutil.copytree(load.recipe_folder(), tmp_path_factory.mktemp("copies") / "recipes"))
    for name in recipe_names():
        shutil.copy(folder / "finetune" / f"{name}.yaml", folder / "finetune" / f"copied-{name}.yaml")
    return folder


@pytest.mark.parametrize("name", slow_unless(["classify", "cola", "ner", "squad", "stsb", "swag"], recipe_names()))
def test_a_recipe_copied_to_a_new_name_has_the_rows_of_the_original(name, copies, monkeypatch):
    original = load_recipe(name)
    monkeypatch.setattr(load, "recipe_folder", lambda: copies)
    assert f"copied-{name}" in recipe_names()
    copied = load_recipe(f"copied-{name}")
    assert copied.name == f"copied-{name}"
    for split in ("train", "validation", "test"):
        assert read_demo_rows(copied, split, 20) == read_demo_rows(original, split, 20)


@pytest.mark.parametrize("name", ["cola", "mrpc", "mnli"])
def test_a_copied_recipe_is_read_as_the_original_is(name, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(load.recipe_folder(), tmp_path / "recipes"))
    shutil.copy(folder / "finetune" / f"{name}.yaml", folder / "finetune" / "copied.yaml")
    monkeypatch.setattr(load, "recipe_folder", lambda: folder)
    fingerprints = []
    for recipe in (load_recipe(name, DEMO), load_recipe("copied", DEMO)):
        task = load_task(recipe)
        splits = read_splits(recipe, task.COLUMNS, lambda row, task=task, recipe=recipe: task.read(row, recipe), bool)
        fingerprints.append({split: rows.fingerprint() for split, rows in splits.items()})
    assert fingerprints[0] == fingerprints[1]
    assert len(fingerprints[0]) == (4 if name == "mnli" else 3)


@pytest.mark.parametrize("columns", ["{text: sentence, label: gold}", PAIR])
@pytest.mark.parametrize("labels", ["[yes_, no_]", "[sport, politics, weather]", "[a, b, c, d, e, f, g]"])
def test_a_new_recipe_with_its_own_labels_has_rows_with_them(tmp_path, columns, labels):
    recipe = load_recipe(write(tmp_path / "new.yaml", columns=columns, labels=labels), DEMO)
    task = load_task(recipe)
    splits = read_splits(recipe, task.COLUMNS, lambda row: task.read(row, recipe), bool)
    for split in splits.values():
        assert {row["label"] for row in split.rows} == set(recipe.labels)
        assert ("text_pair" in split.rows[0]) == ("text_pair" in recipe.data.columns)
    texts = [row["text"] for split in splits.values() for row in split.rows]
    assert len(texts) == len(set(texts))


def test_more_labels_than_topics_have_rows_too(tmp_path):
    labels = [f"l{number}" for number in range(1000)]
    recipe = load_recipe(write(tmp_path / "new.yaml", labels=str(labels)))
    assert {row["label"] for row in read_demo_rows(recipe, "test", 300)} <= set(labels)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"labels": "[contradiction, neutral, entailment]", "columns": PAIR}, "mnli"),
        ({"labels": "[contradiction, neutral, entailment]"}, "topics"),
        ({"labels": "[entailment, not_entailment]", "columns": PAIR, "config": "rte"}, "rte"),
        ({"labels": "[positive, negative]"}, "sst2"),
        ({"labels": "[good, bad]", "config": "cola"}, "topics"),
        ({"labels": "null"}, "sst2"),
        ({"labels": "null", "config": "cola"}, "cola"),
    ],
)
def test_labels_columns_and_config_choose_the_set(tmp_path, parts, name):
    assert find_demo_set(load_recipe(write(tmp_path / "new.yaml", **parts))).name == name


@pytest.mark.parametrize("labels", [["O", "B-DRUG", "I-DRUG"], ["function", "content"], ["O", "B-X"]])
def test_words_have_the_labels_of_the_recipe_too(labels):
    scheme = "auto" if labels == ["O", "B-DRUG", "I-DRUG"] else "none"
    recipe = load_recipe("ner", {**DEMO, "labels": labels, "options.scheme": scheme})
    task = load_task(recipe)
    rows = read_splits(recipe, task.COLUMNS, lambda row: task.read(row, recipe), bool)["train"].rows
    assert {tag for row in rows for tag in row["tags"]} == set(labels)
    assert all(len(row["tokens"]) == len(row["tags"]) for row in rows)


def test_a_task_family_without_demo_rows_is_refused_in_one_line():
    with pytest.raises(DataError, match=r"no demo data for the task family 'mypackage.mytask' - add --data FILE"):
        find_demo_set(load_recipe("cola", {"task": "mypackage.mytask"}))
