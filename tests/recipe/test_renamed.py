"""Keys and values under their old names: read, with one line of warning for each."""

from __future__ import annotations

import pytest

from bertkit.errors import RecipeError
from bertkit.recipe import load_pretrain_recipe, load_recipe, parse_changes, write_yaml
from bertkit.recipe.training import Pretraining, Training
from bertkit.recipe.values import KEYS, VALUES, rename_keys


def of_warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.fixture
def recipes(tmp_path):
    """Two recipes as the last release wrote them."""
    (tmp_path / "tune.yaml").write_text(
        "extends: cola\ntraining:\n  epochs: 1\n  short_last_layer: false\n  trim_vocabulary: false\n"
    )
    (tmp_path / "pretrain.yaml").write_text("extends: mlm\ntraining: {copies: 3, packing: apart}\n")
    return tmp_path


def test_old_names_in_a_recipe_are_read_with_a_warning_each(recipes, caplog):
    training = load_recipe(str(recipes / "tune.yaml")).training
    assert (training.epochs, training.cls_only_last_layer, training.occurring_embeddings) == (1, False, False)
    training = load_pretrain_recipe(str(recipes / "pretrain.yaml")).training
    assert (training.dupe_factor, training.packing) == (3, "documents")
    end = "; the next release will not read the old name"
    assert of_warnings(caplog) == [
        f"training.short_last_layer is now called training.cls_only_last_layer{end}",
        f"training.trim_vocabulary is now called training.occurring_embeddings{end}",
        f"training.copies is now called training.dupe_factor{end}",
        f"training.packing=apart is now called training.packing=documents{end}",
    ]


def test_old_names_with_set_are_read_with_a_warning(caplog):
    changes = parse_changes(["training.short_last_layer=false"])
    assert load_recipe("cola", changes).training.cls_only_last_layer is False
    changes = parse_changes(["training.copies=10", "training.packing=apart"])
    training = load_pretrain_recipe("mlm", changes).training
    assert (training.dupe_factor, training.packing) == (10, "documents")
    assert len(of_warnings(caplog)) == 3


def test_an_override_under_an_old_name_wins_over_the_recipe(recipes):
    (recipes / "new.yaml").write_text("extends: cola\ntraining: {cls_only_last_layer: true}\n")
    recipe = load_recipe(str(recipes / "new.yaml"), {"training.short_last_layer": False})
    assert recipe.training.cls_only_last_layer is False


def test_names_of_today_are_read_without_a_warning(caplog):
    load_recipe("cola", {"training.cls_only_last_layer": False})
    load_pretrain_recipe("mlm", {"training.packing": "joined"})
    assert of_warnings(caplog) == []


def test_the_recipe_of_an_earlier_run_loads_as_the_recipe_of_today(tmp_path):
    recipe = load_recipe("cola", {"training.occurring_embeddings": False})
    values = recipe.model_dump(exclude_none=True)
    new = {name.partition(".")[2]: old.partition(".")[2] for old, name in KEYS.items()}
    values["training"] = {new.get(key, key): value for key, value in values["training"].items()}
    assert {"short_last_layer", "trim_vocabulary"} <= values["training"].keys()
    write_yaml(values, tmp_path / "earlier.yaml")
    assert load_recipe(str(tmp_path / "earlier.yaml")) == recipe


@pytest.mark.parametrize("key", ["training.short_last_layers", "training.copies", "data.short_last_layer"])
def test_an_unknown_key_is_still_an_error(key):
    with pytest.raises(RecipeError, match="unknown key"):
        load_recipe("cola", {key: 1})


def test_records_are_renamed_in_silence_and_the_rest_is_left_alone(caplog):
    values = {"name": "x", "training": {"copies": None, "seed": 1}, "options": {"copies": 2}}
    assert rename_keys(values, warn=False) == {
        "name": "x",
        "training": {"dupe_factor": None, "seed": 1},
        "options": {"copies": 2},
    }
    assert of_warnings(caplog) == []


def test_every_new_name_is_a_key_and_no_old_one_is():
    keys = {f"training.{key}" for record in (Training, Pretraining) for key in record.model_fields}
    assert set(KEYS.values()) | set(VALUES) <= keys
    assert not set(KEYS) & keys
