"""What `bertkit finetune` prints and refuses, with several seeds too."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import typer

from bertkit.cli.commands.finetune import parse_seeds, print_dry_run, print_next_steps, print_seeds
from bertkit.cli.output import print_result
from bertkit.cli.terminal import json_output
from bertkit.errors import DivergedError, UsageError
from bertkit.evaluation.run_sets import SeedsOfSplit, SeedsSummary, SetRun
from bertkit.evaluation.scoring import EvalResult
from bertkit.metrics.seeds import compute_spread
from bertkit.recipe import load_recipe, write_yaml
from bertkit.tasks import load_task, next_commands
from bertkit.workflows.trial_run import DryRun

PLAN = DryRun(
    recipe="cola",
    model="demo",
    folder="runs/cola",
    rows={"train": 8551, "validation": 1043},
    labels=[f"label{n}" for n in range(30)],
    steps=1200,
    disk_bytes=10_000_000,
    resolved="name: cola\n",
)


def test_a_plan_has_its_rows_labels_steps_and_disk(capsys):
    print_dry_run(PLAN)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["name: cola", "", "rows     train 8,551, validation 1,043"]
    assert lines[3].endswith("label18, label19")
    assert lines[4:] == ["steps    1,200", "disk     10 MB in runs/cola", lines[-1]]
    assert lines[-1].startswith("Nothing was written. `bertkit bench` ")


def test_a_plan_has_the_time_and_memory_of_timed_steps_or_why_it_has_none(capsys):
    print_dry_run(replace(PLAN, seconds=754.0, memory_bytes=1_264_000_000, timed_steps=10))
    lines = capsys.readouterr().out.splitlines()
    assert "time     12 min 34 s, without startup, scoring and saving" in lines
    assert "memory   1,264 MB at peak" in lines
    assert lines[-2] == "Time and memory are estimates from 10 steps of training."
    print_dry_run(replace(PLAN, seconds=24.0), runs=3)
    assert "time     24.0 s in each of 3 runs, without startup, scoring and saving" in capsys.readouterr().out
    print_dry_run(replace(PLAN, notes=["bf16, batch 32: out of memory"]))
    assert capsys.readouterr().out.splitlines()[-2] == "  bf16, batch 32: out of memory"


@pytest.mark.parametrize(("metric", "trust"), [("evaluate:./mine.py", " --trust-remote-code"), ("f1_macro", "")])
def test_next_steps_say_that_a_metric_of_your_own_needs_trust(tmp_path, capsys, metric, trust):
    recipe = load_recipe("classify", {"metrics": ["accuracy", metric], "best_metric": "accuracy"})
    write_yaml(recipe.model_dump(mode="json", exclude_defaults=True), tmp_path / "recipe.yaml")
    print_next_steps(recipe, [SimpleNamespace(folder=tmp_path)])
    out = capsys.readouterr().out
    assert f"bertkit eval {tmp_path}{trust}\n" in out and f'bertkit predict {tmp_path} --text "..."\n' in out


@pytest.mark.parametrize(("name", "has_errors"), [("qa", True), ("similarity-pairs", False), ("sparse", False)])
def test_errors_are_next_if_answers_can_be_wrong_row_by_row(name, has_errors):
    recipe = load_recipe(name)
    commands = next_commands(load_task(recipe), recipe, "run")
    assert ("bertkit errors run" in commands) == has_errors


def test_no_results_have_no_next_steps(capsys):
    print_next_steps(load_recipe("classify"), [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epochs", "0"], "training.epochs = 0.0 is out of range"),
        (["--jobs", "2"], "--jobs without --seeds"),
        (["--seeds", "3", "--seed", "1"], "one seed and --seeds are both given"),
        (["--seeds", "3", "--set", "training.seed=1"], "one seed and --seeds are both given"),
        (["--seeds", "three"], "--seeds 'three' is neither a number of seeds nor a list"),
        (["--batch-size", "x"], "--batch-size = 'x' is wrong: must be an integer"),
    ],
)
def test_bad_options_are_refused(run, options, message):
    ended = run("finetune", "cola", *options)
    assert ended.code == 2
    assert message in ended.last


def test_a_run_folder_with_the_name_of_a_recipe_is_suggested_as_a_path():
    recipe = load_recipe("cola")
    commands = next_commands(load_task(recipe), recipe, "cola")
    assert [command.split()[2] for command in commands[1:]] == ["./cola"] * (len(commands) - 1)


def summary_of(scores, **changes):
    results = [EvalResult("cola", "demo", "validation", {"f1": score}, 40, 1.0) for score in scores]
    found = [SetRun(f"seed-{n}", "finished", results=[result]) for n, result in enumerate(results, 1)]
    spread = compute_spread(scores, interval=(0.25, 0.75))
    facts = {
        "runs": found,
        "splits": [SeedsOfSplit("validation", 40, {"f1": spread}, {"f1": 0.5})],
        "best_seed": 2,
    }
    return SeedsSummary(
        **{"recipe": "cola", "model": "demo", "folder": "runs/x y", "best_metric": "f1", **facts, **changes}
    )


@pytest.mark.parametrize(
    ("text", "seeds"), [("1", (1,)), ("5", (1, 2, 3, 4, 5)), ("1,2,7", (1, 2, 7)), ("0,4", (0, 4))]
)
def test_a_number_counts_seeds_and_a_list_names_them(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-3", "a", "1,", "1.5", "3,3", "1,-2", "4294967296,1", "1234"])
def test_other_seeds_are_refused(text):
    with pytest.raises(UsageError) as refused:
        parse_seeds(text)
    assert text in str(refused.value) and refused.value.remedy


def test_the_spread_every_run_and_the_best_of_several_are_printed(capsys):
    failed = SetRun("seed-3", "diverged", failure="the loss is nan")
    summary = summary_of([0.6, 0.7])
    print_seeds(summary_of([0.6, 0.7], runs=[*summary.runs, failed]))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "cola, validation: 40 rows, 3 seeds, demo"
    assert lines[3].split() == [
        "f1",
        *["0.6500", "0.0707", "0.6000", "0.6500", "0.7000", "0.2500", "to", "0.7500", "0.5000"],
    ]
    assert "failed: seed 3. the loss is nan" in lines
    assert "best of 2: f1 0.7000 (seed 2)" in lines
    assert "expected best f1 of k runs: 1: 0.6500, 2: 0.7000" in lines
    assert [line.split() for line in lines if line.startswith("3 ")] == [["3", "n/a", "diverged"]]
    assert lines[-1] == "open 'runs/x y'/report.html"


def test_a_run_that_diverged_ends_the_command_and_json_stays_one_object(capsys):
    error = DivergedError("seed 3 diverged: the loss is nan", "lower it")
    summary = summary_of([0.6, 0.7])
    with pytest.raises(DivergedError):
        print_result(summary.to_dict(), lambda _: print_seeds(summary), error=error)
    assert "best of 2" in capsys.readouterr().out
    with pytest.raises(typer.Exit) as ended, json_output():
        print_result(summary.to_dict(), lambda _: print_seeds(summary), error=error)
    assert ended.value.exit_code == 7
    printed = json.loads(capsys.readouterr().out)
    assert (printed["status"], printed["error"]["code"], printed["best_seed"]) == ("error", 7, 2)
