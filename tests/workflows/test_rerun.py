"""`bertkit rerun`: the same run again from its record, to the bit, and what is said where that cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bertkit.errors import ModelError, RecipeError, ResourceError, UsageError
from bertkit.storage import runs
from bertkit.workflows.rerun import _recorded_recipe, compare_runs, find_differences, rerun
from tests.conftest import distill, finetune
from tests.test_habits import HEAVY
from tests.workflows.test_pretrain import arguments as pretrain_arguments


def test_a_run_is_repeated_to_the_bit_and_changed_rows_are_refused(run, tiny_model, toy_data, light_zygote, tmp_path):
    assert finetune(run, tiny_model, toy_data, "--epochs", 0.5, "--output", "a").code == 0
    moved = shutil.copytree(toy_data, tmp_path / "moved")
    with (toy_data / "train.csv").open("a", encoding="utf-8") as stream:
        stream.write("so dull,bad\n")
    refused = run("rerun", "a")
    assert refused.code == 3 and "the inputs differ from the run's: data.train: " in refused.last
    ended = run("rerun", "a", "--data", moved, "--json")
    assert ended.code == 0, ended.err
    printed = json.loads(ended.out)
    assert (printed["scores_agree"], printed["weights_agree"]) == (True, True)
    assert (printed["differences"], printed["first_difference"]) == ([], None)
    for name in ("predictions.jsonl", "metrics.jsonl", "model.safetensors"):
        assert Path("a-rerun", name).read_bytes() == Path("a", name).read_bytes()
    shutil.rmtree(toy_data)
    heavy = light_zygote.imports(Path("a").resolve().parent, ["rerun", "a", "-o", "third"])
    assert HEAVY & heavy <= {"numpy"}


@pytest.mark.slow
def test_a_run_on_changed_rows_is_repeated_where_that_is_asked_for(run, tiny_model, toy_data):
    assert finetune(run, tiny_model, toy_data, "--epochs", 0.5, "--output", "a").code == 0
    with (toy_data / "train.csv").open("a", encoding="utf-8") as stream:
        stream.write("so dull,bad\n")
    ended = run("rerun", "a", "--ignore-changes", "--json")
    printed = json.loads(ended.out)
    assert ended.code == (0 if printed["scores_agree"] else 5) and not printed["weights_agree"]
    assert [difference["what"] for difference in printed["differences"]] == ["data.train"]


@pytest.mark.slow
@pytest.mark.usefixtures("timed_once")
def test_distillation_and_pretraining_are_repeated_too(run, trained, tiny_model, toy_data):
    ended = distill(run, trained, toy_data, "--model", tiny_model, "--epochs", 1, "--output", "student")
    assert ended.code == 0, ended.err
    ended = run("rerun", "student", "--json")
    assert json.loads(ended.out)["weights_agree"] is True
    assert len(runs.read_record(Path("student-rerun"))["compared_models"]) == 2
    assert run(*pretrain_arguments(steps=4)).code == 0
    again = json.loads(run("rerun", "run", "--json").out)
    assert again["weights_agree"] is True and {score["split"] for score in again["scores"]} == {"held-out text"}


def write_run(folder: Path, *, recipe: str = "task: text_classification\n", **changes) -> Path:
    settings = {"name": "a", "task": "text_classification", "metrics": ["accuracy"], "data": {}, "training": {}}
    settings = {**settings, **changes.pop("settings", {})}
    record = {"status": "finished", "identity": {"recipe": settings, "data": {}}, **changes}
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(recipe)
    runs.write_record(folder, record)
    return folder


def test_settings_are_those_of_the_record_and_places_those_of_the_recipe(tmp_path):
    text = "data: {source: rows.csv, limit: 3}\nmodel: m\noptions: {threshold: 0.7}\ntraining: {epochs: 2}\n"
    settings = {"data": {"limit": 5}, "training": {"epochs": 4.0, "seed": 7}, "options": {}}
    folder = write_run(tmp_path / "a", recipe=text, settings=settings)
    record = runs.read_record(folder)
    recipe = _recorded_recipe(folder, record, {})
    assert (recipe.data.source, recipe.data.limit, recipe.model) == ("rows.csv", 5, "m")
    assert (recipe.training.epochs, recipe.training.seed) == (4, 7)
    assert recipe.options == {}  # 0.7 was tuned on the validation rows
    moved = _recorded_recipe(folder, record, {"data": "new.csv", "model": "n"})
    assert (moved.data.source, moved.data.limit, moved.model) == ("new.csv", 5, "n")


def test_what_differs_is_found_in_both_records():
    old = {"versions": {"torch": "2.1"}, "machine": {"threads": 1, "device": "cpu", "reason": "CPU, 1 thread: fp32"}}
    new = {"versions": {"torch": "2.2"}, "machine": {"threads": 1, "device": "cpu", "reason": "as before"}}
    identity = {"data": {"train": "aa"}, "recipe": {"training": {"seed": 1}}}
    assert find_differences({**old, "identity": identity}, {**new, "identity": {"recipe": {}}}) == [
        {"what": "versions.torch", "before": "2.1", "now": "2.2"},
        {"what": "data.train", "before": "aa", "now": None},
        {"what": "settings.training.seed", "before": 1, "now": None},
    ]


def test_logs_tell_from_which_step_on_two_runs_differ(tmp_path):
    results = [{"split": "validation", "scores": {"f1": 0.5, "accuracy": None}}]
    one = write_run(tmp_path / "a", results=results, files={"model.safetensors": {"size": 1, "sha256": "a"}})
    two = write_run(tmp_path / "b", results=results, files={"model.safetensors": {"size": 1, "sha256": "b"}})
    for folder, loss in ((one, 0.25), (two, 0.125)):
        lines = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": loss}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    compared = compare_runs(one, two)
    assert (compared["scores_agree"], compared["weights_agree"], compared["first_difference"]) == (True, False, 2)
    write_run(two, results=[{"split": "validation", "scores": {"f1": 0.5}}, {"split": "x", "scores": {"f1": 1.0}}])
    compared = compare_runs(one, two)
    assert not compared["scores_agree"] and compared["weights_agree"] is None
    assert tuple(compared["scores"][-1].values()) == (("x", "f1", None, 1.0))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"status": "stopped"}, ModelError, "not finished \\(stopped\\)"),
        ({"settings": {"training": {"budget": "2h"}}, "steps": 9}, UsageError, "--steps 9"),
        ({"settings": {"later": 1}, "versions": {"bertkit": "9.1"}}, RecipeError, "later .* bertkit 9.1"),
        ({"files": {"recipe.yaml": {"size": 1, "sha256": "a"}}}, ResourceError, "recipe of the run has changed"),
    ],
)
def test_a_run_that_cannot_be_repeated_is_refused_in_one_line(tmp_path, changes, error, message):
    folder = write_run(tmp_path / "a", **changes)
    with pytest.raises(error, match=message):
        rerun(folder)


def test_other_folders_are_refused(tmp_path):
    run = write_run(tmp_path / "a")
    with pytest.raises(UsageError, match="not a run folder"):
        rerun(tmp_path)
    for inside in (run, run / "again"):
        with pytest.raises(UsageError, match="cannot contain its repetition"):
            rerun(run, output=inside)
    (tmp_path / "seeds" / "seed-1").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"a folder of seeds, not one run .*seed-1"):
        rerun(tmp_path / "seeds")
    (run / "run.json").write_text("{}")
    with pytest.raises(ModelError, match=r"damaged .* restore the file"):
        rerun(run)
