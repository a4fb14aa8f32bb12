"""`bertkit recipes show`."""

from __future__ import annotations

import json

import yaml


def test_a_recipe_is_shown_with_its_defaults_and_changes(run):
    shown = run("recipes", "show", "cola", "--set", "training.epochs=1").out
    printed = json.loads(run("recipes", "show", "cola", "--set", "training.epochs=1", "--json").out)["recipe"]
    assert "epochs: 1.0" in shown
    assert printed["training"]["epochs"] == 1
    assert printed["training"]["schedule"] == "linear"
    assert yaml.safe_load(shown)["data"] == printed["data"]


def test_a_pretraining_recipe_is_shown_too(run):
    assert "objective: mlm" in run("recipes", "show", "mlm").out
