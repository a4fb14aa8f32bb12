"""Explanations of a run: of one row, of a file, and of rows whose label a planted word decides."""

from __future__ import annotations

import json
import random
import shutil

import pytest

from bertkit.recipe import load_recipe
from bertkit.workflows.explain import explain
from bertkit.workflows.finetune import finetune
from tests.conftest import WORDS, rewrite_predictions, toy_rows, write_csv

CUE = "superb"


def planted_rows(count, seed, *, always=False):
    """Write rows of filler words, half of them with one word, which alone decides the label."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        words, planted = rng.choices(WORDS["filler"], k=rng.randint(4, 12)), always or rng.random() < 0.5
        if planted:
            words.insert(rng.randrange(len(words) + 1), CUE)
        rows.append({"text": " ".join(words), "label": "good" if planted else "bad"})
    return rows


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    write_csv(folder / "train.csv", planted_rows(400, seed=3))
    write_csv(folder / "validation.csv", planted_rows(60, seed=4))
    settings = {"training.epochs": 3, "training.batch_size": 16, "training.learning_rate": 1e-3}
    changes = {"model": "demo", "data.source": str(folder), "training.precision": "fp32", **settings}
    finetune(load_recipe("classify", changes), output=folder / "run")
    return folder / "run"


def load_run(folder):
    return load_recipe(str(folder / "recipe.yaml"), {"model": str(folder)})


@pytest.mark.slow
def test_a_planted_cue_is_found_in_all_of_100_rows(planted, tmp_path):
    rows = write_csv(tmp_path / "rows.csv", [{"text": row["text"]} for row in planted_rows(100, seed=5, always=True)])
    explained = [row.explanations[0] for row in explain(load_run(planted), source=rows)]
    assert {one.target for one in explained} == {"good"}
    assert all(one.is_complete for one in explained)
    for method in ("integrated_gradients", "occlusion"):
        found = [max(one.words, key=lambda word: getattr(word, method)).word for one in explained]
        assert found == [CUE] * 100


def test_the_rows_of_a_file_are_explained(trained, tmp_path):
    rows = [{"text": row["text"]} for row in toy_rows(3, seed=5)]
    explained = list(explain(load_run(trained), source=write_csv(tmp_path / "rows.csv", rows), limit=2))
    assert [row.row["text"] for row in explained] == [row["text"] for row in rows[:2]]
    for row in explained:
        (one,) = row.explanations
        assert one.target == row.prediction["prediction"]
        assert " ".join(word.word for word in one.words) == row.row["text"]
        total = sum(word.integrated_gradients for word in one.words)
        assert total == pytest.approx(one.score - one.baseline_score, rel=0.011)


def test_the_most_confident_mistakes_of_a_run_are_explained(run, trained, tmp_path):
    assert "no row is wrong" in run("explain", trained, "--errors", 2).err
    run_folder = shutil.copytree(trained, tmp_path / "run")
    rows = [json.loads(line) for line in (run_folder / "predictions.jsonl").read_text().splitlines()]
    wrong = sorted(rows[3:6], key=lambda row: -max(row["probabilities"].values()))
    for row in wrong:
        row["label"] = {"good": "bad", "bad": "good"}[row["label"]]
    rewrite_predictions(run_folder, map(json.dumps, rows))
    ended = run("explain", run_folder, "--errors", 2, "--json")
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)["rows"]
    assert [row["text"] for row in rows] == [row["text"] for row in wrong[:2]]
    for row in rows:
        assert row["gold"] == row["label"] != row["prediction"] == row["explanations"][0]["target"]
    run("explain", run_folder, "--errors", 1, "-o", tmp_path / "why.html")
    assert f"gold <b>{rows[0]['gold']}</b>" in (tmp_path / "why.html").read_text()


def test_a_page_and_its_numbers(run, trained, tmp_path):
    ended = run("explain", trained, "--text", "the Film was SUPERB", "--json")
    (row,) = json.loads(ended.out)["rows"]
    assert row["text"] == "the Film was SUPERB"
    (one,) = row["explanations"]
    assert [word["word"] for word in one["words"]] == ["the", "film", "was", "superb"]
    ended = run("explain", trained, "--text", "a dull film", "--target", "good", "-o", tmp_path / "why.html")
    assert ended.out == f"{tmp_path / 'why.html'}: 1 row\n"
    assert "dull</span>" in (tmp_path / "why.html").read_text()
