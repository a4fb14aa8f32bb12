"""What `bertkit finetune` prints and refuses; its trainings are in tests/workflows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bertkit.cli.commands.finetune import print_dry_run, print_next_steps
from bertkit.recipe import load_recipe, write_yaml
from bertkit.workflows.finetune.inputs import DryRun

PLAN = DryRun(
    recipe="cola",
    model="demo",
    folder="runs/cola",
    rows={"train": None, "validation": 1043},
    labels=[f"label{n}" for n in range(30)],
    steps=1200,
    disk_bytes=10_000_000,
    resolved="name: cola\n",
)


def test_a_plan_has_its_rows_labels_steps_and_disk(capsys):
    print_dry_run(PLAN)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["name: cola", "", "rows     train streamed, validation 1,043"]
    assert lines[3].endswith("label18, label19")
    assert lines[4:] == ["steps    1,200", "disk     10 MB in runs/cola", lines[-1]]
    assert lines[-1].startswith("Nothing was trained or written. `bertkit bench` ")


@pytest.mark.parametrize(("metric", "trust"), [("evaluate:./mine.py", " --trust"), ("f1_macro", "")])
def test_next_steps_say_that_a_metric_of_your_own_needs_trust(tmp_path, capsys, metric, trust):
    recipe = load_recipe("classify", {"metrics": ["accuracy", metric], "best_metric": "accuracy"})
    write_yaml(recipe.model_dump(mode="json", exclude_defaults=True), tmp_path / "recipe.yaml")
    print_next_steps([SimpleNamespace(folder=tmp_path)])
    assert f"bertkit eval {tmp_path}{trust}\n" in capsys.readouterr().out


def test_no_results_have_no_next_steps(capsys):
    print_next_steps([])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epochs", "0"], "training.epochs = 0.0 is out of range"),
        (["--soup"], "--soup without --seeds"),
        (["--jobs", "2"], "--jobs without --seeds"),
        (["--seeds", "3", "--seed", "1"], "one seed and --seeds are both given"),
        (["--seeds", "3", "--set", "training.seed=1"], "one seed and --seeds are both given"),
        (["--seeds", "three"], "--seeds 'three' is neither a number of seeds nor a list"),
        (["--batch-size", "x"], "--batch-size = 'x' is wrong: must be a whole number"),
    ],
)
def test_bad_options_are_refused(run, options, message):
    ended = run("finetune", "cola", *options)
    assert ended.code == 2
    assert message in ended.last
