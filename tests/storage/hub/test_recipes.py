"""Where the recipe of a trained model is."""

from __future__ import annotations

import pytest

from bertkit.errors import ModelError, UsageError
from bertkit.storage import runs
from bertkit.storage.hub.models import find_recipe, get_recipe_file


def test_the_recipe_is_in_the_folder_of_the_run_above_a_checkpoint_and_in_a_seed(tmp_path):
    run, seeds = tmp_path / "run", tmp_path / "seeds"
    for folder in (run / "checkpoint-3", run / "other", seeds / "seed-1", seeds / "seed-2"):
        folder.mkdir(parents=True)
    for folder in (run, seeds / "seed-2"):
        (folder / "recipe.yaml").touch()
    assert find_recipe(run) == run / "recipe.yaml" == find_recipe(run / "checkpoint-3")
    assert find_recipe(seeds) == seeds / "seed-2" / "recipe.yaml"
    assert find_recipe(run / "other") is None
    assert get_recipe_file(str(run)) == str(run / "recipe.yaml")
    with pytest.raises(
        UsageError, match=r"no recipe.yaml in the model folder, .* - name a run folder, or add --recipe"
    ):
        get_recipe_file(str(run / "other"))


def test_a_run_that_is_not_finished_says_so(tmp_path):
    runs.write_record(tmp_path, {"status": "running", "identity": {}})
    with pytest.raises(ModelError, match="not finished"):
        get_recipe_file(str(tmp_path))
