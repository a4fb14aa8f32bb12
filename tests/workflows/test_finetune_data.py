"""The rows of a run, read before anything is trained."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bertkit.recipe import load_recipe
from bertkit.storage import runs
from bertkit.storage.cache import log_once
from bertkit.storage.run_sets import write_settings
from tests.conftest import LEARN, toy_rows, write_csv, write_jsonl


@pytest.fixture
def odd_data(toy_data):
    """A typo among the labels, and a training row that is a validation row too."""
    rows = toy_rows(400, seed=1)
    rows[5]["label"] = "Good"
    write_csv(toy_data / "train.csv", rows)
    validation = toy_rows(40, seed=2)
    validation[3] = {"text": rows[7]["text"], "label": "good"}
    write_csv(toy_data / "validation.csv", validation)
    return toy_data


def test_odd_rows_are_told_once_and_in_the_plan(run, tiny_model, odd_data):
    log_once.cache_clear()
    command = ["finetune", "classify", "--model", tiny_model, "--data", odd_data, "--dry-run"]
    ended = run(*command, "--json")
    warnings = json.loads(ended.out)["warnings"]
    assert [line for line in ended.err.splitlines() if "warning" in line] == [f"warning: {line}" for line in warnings]
    typo, shared = warnings
    assert typo == f"The label 'Good' occurs once in 400 training rows ({odd_data}/train.csv:7). Is 'good' meant?"
    assert " validation rows are training rows too, such as " in shared
    assert "warning" not in run(*command).err  # of one process; another one would say it again


def test_a_dry_run_tells_that_labels_are_skewed_and_its_advice_can_be_followed(run, tiny_model, toy_data):
    log_once.cache_clear()
    rows = [{**row, "label": "bad" if number % 20 else "good"} for number, row in enumerate(toy_rows(200, seed=1))]
    write_csv(toy_data / "train.csv", rows)
    command = ["finetune", "classify", "--model", tiny_model, "--data", toy_data, "--dry-run", "--json"]
    ended = run(*command, "--set", "metrics=[accuracy]")
    (warning,) = json.loads(ended.out)["warnings"]
    assert warning.startswith("190 of 200 (95.0%) training rows have the label 'bad': ")
    settings = re.findall(r"--set '?([^')]+)", warning)
    assert settings == ["training.class_weights=balanced", "metrics=[f1_macro, accuracy]"]
    ended = run(*command, *(word for setting in settings for word in ("--set", setting)))
    assert (ended.code, json.loads(ended.out)["warnings"]) == (0, [])


def test_odd_rows_are_in_the_results_and_the_report(run, tiny_model, odd_data):
    short = ["--epochs", "0.1", "--set", "training.precision=fp32", "--set", "data.validation_fraction=0.5"]
    ended = run("finetune", "classify", "--model", tiny_model, "--data", odd_data, *short, "--json")
    (result,) = json.loads(ended.out)["results"]
    assert len(result["data_warnings"]) == 2
    assert "Is &#39;good&#39; meant?" in Path("runs/classify/report.html").read_text()


def test_demo_rows_are_not_doubted(run):
    log_once.cache_clear()
    ended = run("finetune", "cola", "--model", "demo", "--data", "demo", "--limit", 200, "--dry-run", "--json")
    assert (ended.code, json.loads(ended.out)["warnings"]) == (0, [])


def test_odd_columns_are_told_before_the_error_that_comes_of_them(run, tiny_model, tmp_path):
    rows = [{**row, "label": n} for n, row in enumerate(toy_rows(50, seed=1))]
    write_csv(tmp_path / "train.csv", rows[:45])
    write_csv(tmp_path / "validation.csv", rows[45:])
    ended = run("finetune", "classify", "--model", tiny_model, "--data", tmp_path, "--dry-run")
    assert ended.code == 3
    assert "warning: 45 training rows have 45 different labels. Is 'label' the label column?" in ended.err


def test_swapped_columns_are_refused(run, tiny_model, toy_data):
    columns = "data.columns={text: label, label: text}"
    ended = run("finetune", "classify", "--model", tiny_model, "--data", toy_data, "--set", columns, "--dry-run")
    assert ended.code == 3
    remedy = ended.last.rpartition(" - add ")[2].partition(";")[0]
    mended = ["--set", columns, *shlex.split(remedy), "--dry-run"]
    assert run("finetune", "classify", "--model", tiny_model, "--data", toy_data, *mended).code == 0


@pytest.mark.parametrize(
    "changed", [{"data.label_range": None}, {"training.keep_all_checkpoints": True, "training.keep_optimizer": True}]
)
def test_what_changes_no_score_is_no_part_of_a_runs_identity(changed):
    """So that a run of before the range goes on, and one that is to keep more checkpoints from now on."""
    from bertkit.recipe import load_recipe
    from bertkit.tasks import load_task
    from bertkit.workflows.finetune_data import read_finetune_data

    identities = []
    for changes in ({}, changed):
        recipe = load_recipe("stsb", {"model": "demo", "data.source": "demo", "data.limit": 20, **changes})
        load_task(recipe)
        identities.append(read_finetune_data(recipe, "nowhere").plan.identity)
    assert identities[0] == identities[1]


def test_rows_are_drawn_per_label_and_where_there_are_labels_only(run, tiny_model, toy_data):
    command = [
        "finetune",
        "classify",
        "--model",
        tiny_model,
        "--data",
        toy_data,
        "--set",
        "data.train_rows_per_label=8",
    ]
    ended = run(*command, "--dry-run")
    assert ended.code == 0 and "rows     train 16, validation 40" in ended.out
    command[1] = "regress"
    ended = run(*command, "--dry-run")
    assert (ended.code, "the rows of text_regression have none" in ended.last) == (2, True)


def test_a_recipe_without_teachers_imports_no_distillation():
    script = """
import sys
from bertkit.recipe import load_recipe
from bertkit.workflows.finetune_data import read_finetune_data
read_finetune_data(load_recipe("cola", {"model": "demo", "data.source": "demo", "data.limit": 20}), None)
print([name for name in sys.modules if name.startswith("bertkit.compression")])
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_labeled_rows_are_read_without_a_model(toy_data):
    from bertkit.recipe import load_recipe
    from bertkit.workflows.finetune_data import read_labeled

    labels, splits = read_labeled(load_recipe("classify", {"data.source": str(toy_data), "model": "no/such-model"}))
    assert labels == ("bad", "good") and {row["label"] for row in splits["train"].rows} == {"bad", "good"}
    assert {"train", "validation"} <= set(splits)


def test_runs_beside_those_of_an_earlier_draw_hold_out_the_same_rows(tmp_path):
    """Seeds and trials that join a folder later."""
    from bertkit.storage.run_sets import seed_folders
    from bertkit.workflows import finetune_data, sweep

    earlier = {"status": "stopped", "identity": {"hold_out": "by_label"}}
    recipe = load_recipe("classify")
    for folder in ("seed-3", "trial-0001"):
        (tmp_path / folder).mkdir()
        runs.write_record(tmp_path / folder, earlier)
    assert finetune_data.with_recorded_hold_out(recipe, seed_folders(tmp_path)).data.hold_out == "by_label"
    assert finetune_data.with_recorded_hold_out(recipe, seed_folders(tmp_path / "new")).data.hold_out == "by_hash"
    assert (
        finetune_data.with_recorded_hold_out(recipe, [tmp_path / "new", tmp_path / "seed-3"]).data.hold_out
        == "by_label"
    )
    (tmp_path / "all.csv").write_text("text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(40)))
    changes = {"model": "demo", "data.source": str(tmp_path / "all.csv")}
    job = sweep.Sweep(tmp_path, ["trial-0001", "trial-0002"], "classify", changes, None)
    write_settings(tmp_path, "trial-0001", {})
    assert job.read("trial-0002").recipe.data.hold_out == "by_label"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("{warmup: 1}", "TrainingArguments has no field 'warmup' - write training.warmup_ratio"),
        ("{report_to: wandb}", "training.extra.report_to is decided by training.report_to - leave it out"),
        ("{num_train_epochs: 3}", "training.extra.num_train_epochs is decided by training.epochs - leave it out"),
        ("{max_steps: 7}", "training.extra.max_steps is decided by training.steps - leave it out"),
    ],
)
def test_a_dry_run_checks_what_is_handed_to_the_trainer(run, tiny_model, toy_data, extra, message):
    options = ("--model", tiny_model, "--data", toy_data, "--set", f"training.extra={extra}", "--dry-run")
    ended = run("finetune", "classify", *options)
    assert (ended.code, ended.last.startswith(f"error: {message}")) == (2, True), ended.err


def test_a_label_of_validation_rows_alone_is_a_label_that_is_never_learned(run, tiny_model, toy_data):
    rows = toy_rows(40, seed=2)
    write_csv(toy_data / "validation.csv", [*rows, {"text": "good", "label": "mixed"}])
    command = ("finetune", "classify", "--model", tiny_model, "--data", toy_data, "--epochs", 1)
    plan = run(*command, "--dry-run", "--json")
    assert json.loads(plan.out)["labels"] == ["bad", "good", "mixed"]
    told = f"No training row has the label 'mixed' (1 of validation, the first {toy_data}/validation.csv:42). "
    assert json.loads(plan.out)["warnings"][0] == f"{told}It cannot be learned, and counts as missed."
    ended = run(*command, "--json")
    assert ended.code == 0, ended.err
    found = [json.loads(line) for line in Path("runs/classify/predictions.jsonl").read_text().splitlines()]
    right = sum(row["label"] == row["prediction"] for row in found)
    assert json.loads(ended.out)["results"][0]["scores"]["accuracy"] == right / 41
    assert (
        run(*command, "--set", "data.train_rows_per_label=10", "--output", "few").code == 0
    )  # drawn from the other labels
    write_csv(toy_data / "validation.csv", [*rows, {"text": "good", "label": "GOOD"}])
    ended = run(*command)
    assert (ended.code, ended.last.endswith("did you mean good?")) == (3, True)


def test_an_entity_type_of_validation_rows_alone_counts_as_missed(run, tiny_model, tmp_path):
    known, rare = ({"tokens": ["good", "film"], "tags": [tag, "O"]} for tag in ("B-PER", "B-LOC"))
    write_jsonl(tmp_path / "d" / "train.jsonl", [known] * 40)
    write_jsonl(tmp_path / "d" / "validation.jsonl", [known] * 3 + [rare])
    ended = run("finetune", "tag", "--model", tiny_model, "--data", tmp_path / "d", *LEARN, "--epochs", 8, "--json")
    assert ended.code == 0, ended.err
    assert "No training row has the label 'LOC' (1 of validation" in ended.err
    result = json.loads(ended.out)["results"][0]
    assert result["scores"]["recall"] == 3 / 4
    assert {row["type"]: row["recall"] for row in result["tables"]["entity types"]} == {"LOC": 0, "PER": 1}


@pytest.fixture
def pairs(tmp_path) -> Path:
    rows = [{**row, "text_pair": f"one {n}", "premise": "p", "date": n} for n, row in enumerate(toy_rows(60, seed=1))]
    return write_csv(tmp_path / "pairs.csv", rows)


def test_the_second_text_is_read_where_it_stands_and_unread_columns_are_listed(run, tiny_model, pairs):
    command = ("finetune", "classify", "--model", tiny_model, "--data", pairs, "--epochs", 1)
    plan = run(*command, "--dry-run")
    assert plan.code == 0, plan.err
    assert "not read premise, date" in plan.out and "text_pair: text_pair" in plan.out
    assert "the column 'text_pair' is read as the second text of a pair" in plan.err
    assert plan.err.count("is read as the second text") == 1
    assert "columns not used: premise, date" in plan.err
    warning = "'premise' looks like input and is not read."  # the second text is taken, so there is no place for it
    plan = json.loads(run(*command, "--dry-run", "--json").out)
    assert (plan["unread"], plan["warnings"]) == (["premise", "date"], [warning])
    assert run(*command).code == 0
    assert "text_pair" in json.loads(Path("runs/classify/predictions.jsonl").read_text().splitlines()[0])
    assert run(*command).code == 0  # as a finished run
    for recipe in ("classify", "runs/classify/recipe.yaml"):  # the shipped one does not map it
        ended = run("eval", recipe, "--model", "runs/classify", "--data", pairs, "--output", "scored", "--json")
        assert (ended.code, json.loads(ended.out)["results"][0]["training_rows"]) == (0, 0), ended.err
        assert "text_pair" in json.loads(Path("scored/predictions.jsonl").read_text().splitlines()[0])
    checked = run("check", "classify", "--model", tiny_model, "--data", pairs, "--json")
    found = json.loads(checked.out)
    assert found["unread"] == ["premise", "date"]
    assert [one["text"] for one in found["findings"] if one["name"] == "unread_columns"] == [warning]


def test_a_run_that_was_begun_without_the_second_text_goes_on_without_it(run, tiny_model, pairs):
    command = ("finetune", "classify", "--model", tiny_model, "--data", pairs, "--epochs", 1)
    assert run(*command, "--set", "data.columns.text_pair=null").code == 0
    record = runs.read_record(Path("runs/classify"))
    settings = record["identity"]["recipe"]["data"]
    assert not {"text_pair", "ignore_columns"} & {*settings, *settings["columns"]}
    recipe = Path("runs/classify/recipe.yaml").read_text()
    record["files"].pop("recipe.yaml")
    Path("runs/classify/recipe.yaml").write_text(recipe.replace("  ignore_columns: [text_pair]\n", ""))
    runs.write_record(Path("runs/classify"), record)
    assert "ignore_columns" not in Path("runs/classify/recipe.yaml").read_text()
    assert run(*command).code == 0
    for recipe in ("classify", "runs/classify/recipe.yaml"):
        ended = run("eval", recipe, "--model", "runs/classify", "--data", pairs, "--output", "scored", "--json")
        assert ended.code == 0, ended.err
        assert "text_pair" not in json.loads(Path("scored/predictions.jsonl").read_text().splitlines()[0])
    ended = run(*command, "--output", "other", "--set", "data.columns.text_pair=premise", "--dry-run", "--json")
    assert json.loads(ended.out)["unread"] == ["text_pair", "date"]


@pytest.mark.parametrize(
    ("recipe", "labels", "columns"),
    [
        ("classify", ["a", "b"], {}),
        ("regress", [1.5, 2], {}),
        pytest.param("choose", [0, 1], {"context": "text", "choices": ["one", "two"]}, marks=pytest.mark.slow),
    ],
)
def test_rows_without_a_label_are_refused_dropped_or_cleaned_away(run, tiny_model, tmp_path, recipe, labels, columns):
    rows = [
        {**row, "one": f"{n}", "two": "2", "Queue": ["", *labels, *labels][n % 5]}
        for n, row in enumerate(toy_rows(60, 1))
    ]
    file = write_csv(tmp_path / "tickets.csv", rows)
    mapped = {"label": "Queue", **columns}
    settings = [part for key, value in mapped.items() for part in ("--set", f"data.columns.{key}={json.dumps(value)}")]
    command = ("finetune", recipe, "--model", tiny_model, *settings, "--dry-run")
    ended = run(*command, "--data", file)
    assert ended.code == 3
    assert "error: no label (also in lines 7, 12, " in ended.last and "tickets.csv:2, column 'Queue')" in ended.last
    assert ended.last.endswith(" - fill it in, or --set data.empty_label=drop")
    ended = run(*command, "--data", file, "--set", "data.empty_label=drop")
    assert (ended.code, f"rows of {file} without a label, left out: 12" in ended.err) == (0, True), ended.err
    checked = run("check", recipe, "--model", tiny_model, *settings, "--data", file, "--fix", tmp_path / "clean")
    assert "left out: 12 rows without a label" in checked.out
    assert run(*command, "--data", tmp_path / "clean" / "tickets.csv").code == 0


def plan_of(run, model, data, *settings):
    changes = [part for setting in settings for part in ("--set", setting)]
    return run("finetune", "classify", "--model", model, "--data", data, *changes, "--dry-run")


@pytest.mark.parametrize(
    ("settings", "code", "what"),
    [
        (("data.train_limit=24",), 0, "rows     train 24, validation 40"),
        (
            ("data.train_limit=24", "data.train_rows_per_label=8"),
            2,
            "data.train_limit = 24 is wrong: does not go with data.train_rows_per_label",
        ),
        (("data.train_limit=401",), 3, "data.train_limit is 401, but there are 400 training rows"),
        (("data.train_limit=1",), 3, "every row has the same label"),
    ],
)
def test_fewer_training_rows_leave_validation_whole_or_are_refused(run, tiny_model, toy_data, settings, code, what):
    write_csv(toy_data / "train.csv", toy_rows(400, seed=1))
    ended = plan_of(run, tiny_model, toy_data, *settings)
    assert (ended.code, what in (ended.last if code else ended.out)) == (code, True), ended.err


def test_rows_without_labels_are_drawn_too(run, tiny_model):
    command = ["finetune", "stsb", "--model", tiny_model, "--data", "demo", "--limit", 40, "--dry-run"]
    drawn = run(*command, "--set", "data.train_limit=10")
    assert (drawn.code, "rows     train 10, validation 40" in drawn.out) == (0, True)
    refused = run(*command, "--set", "data.train_rows_per_label=10")
    assert (refused.code, "--set data.train_limit=10" in refused.last) == (2, True)


def test_the_draw_that_is_typed_takes_the_place_of_the_one_of_the_recipe(run, tiny_model, toy_data):
    Path("mine.yaml").write_text("extends: classify\ndata:\n  train_rows_per_label: 8\n")
    ended = run(
        "finetune", "mine.yaml", "--model", tiny_model, "--data", toy_data, "--dry-run", "--set", "data.train_limit=9"
    )
    assert (ended.code, "rows     train 9, " in ended.out) == (0, True), ended.err
    assert (
        "data.train_limit 9 does not go with the recipe's data.train_rows_per_label 8, which is left out" in ended.err
    )
