"""Explanations of a run whose labels a planted word decides."""

from __future__ import annotations

import json

import pytest

from bertkit.recipe import load_recipe
from bertkit.workflows.explain import explain, measure
from tests.conftest import WORDS, toy_rows, write_csv

CUES = {*WORDS["good"], *WORDS["bad"]}


def find_cues(trained, folder, count):
    rows = [{"text": row["text"]} for row in toy_rows(count, seed=5)]
    recipe = load_recipe(str(trained / "recipe.yaml"), {"model": str(trained)})
    explained = list(explain(recipe, source=write_csv(folder / "rows.csv", rows)))
    for row in explained:
        (one,) = row.explanations
        assert one.is_complete
        assert one.target == row.prediction["prediction"]
    strongest = [max(row.explanations[0].words, key=lambda word: word.integrated_gradients).word for row in explained]
    occluded = [max(row.explanations[0].words, key=lambda word: word.occlusion).word for row in explained]
    return strongest, occluded


def test_a_planted_cue_is_found(trained, tmp_path):
    strongest, occluded = find_cues(trained, tmp_path, 5)
    assert {*strongest, *occluded} <= CUES


@pytest.mark.slow
def test_a_planted_cue_is_found_in_all_of_100_rows(trained, tmp_path):
    strongest, _ = find_cues(trained, tmp_path, 100)
    assert len(strongest) == 100
    assert {*strongest} <= CUES


def test_a_page_and_its_numbers(run, trained, tmp_path):
    ended = run("explain", trained, "--text", "the Film was SUPERB", "--json")
    (row,) = json.loads(ended.out)["rows"]
    assert (row["prediction"], row["text"]) == ("good", "the Film was SUPERB")
    (one,) = row["explanations"]
    assert [word["word"] for word in one["words"]] == ["the", "Film", "was", "SUPERB"]
    assert max(one["words"], key=lambda word: word["integrated_gradients"])["word"] == "SUPERB"
    ended = run("explain", trained, "--text", "a dull film", "--target", "good", "-o", tmp_path / "why.html")
    assert ended.out == f"{tmp_path / 'why.html'}: 1 row\n"
    assert "dull</span>" in (tmp_path / "why.html").read_text()


@pytest.mark.slow
def test_a_planted_cue_is_more_faithful_than_chance(trained, tmp_path):
    recipe = load_recipe(str(trained / "recipe.yaml"), {"model": str(trained)})
    rows = write_csv(tmp_path / "rows.csv", [{"text": row["text"]} for row in toy_rows(30, seed=6)])
    found = measure(recipe, source=rows)
    assert (found.rows, found.score) == (30, "probability")
    for one in found.methods[:2]:
        assert one.above_random[0] > 0
        assert one.below_random[0] > 0
