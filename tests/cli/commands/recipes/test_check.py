"""`bertkit recipes check`."""

from __future__ import annotations

import json

import pytest


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
