"""Fine-tuning through the command line: what is learned, what is written, what is refused."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification

from bertkit.storage.cache import log_once
from tests.conftest import LEARN, ONCE, finetune, toy_rows, write_csv
from tests.kills import read_lines


def test_a_toy_task_is_solved_and_the_loss_falls(trained):
    scores = json.loads((trained / "run.json").read_text())["results"][0]
    assert scores["scores"]["accuracy"] > 0.95
    assert scores["baselines"]["most frequent label"]["accuracy"] < 0.7
    low, high = scores["intervals"]["accuracy"]
    assert low <= scores["scores"]["accuracy"] <= high
    losses = [entry["loss"] for entry in read_lines(trained / "metrics.jsonl") if "loss" in entry]
    assert losses[-1] < losses[0] / 4


def test_the_next_commands_it_names_work(run, tiny_model, toy_data):
    shown = finetune(run, tiny_model, toy_data, "--epochs", 1, "--max-length", 32).out
    commands = [shlex.split(line) for line in shown.splitlines() if line.startswith("  bertkit ")]
    assert [command[1] for command in commands] == ["predict", "eval", "errors", "push"]
    for command in commands[:-1]:  # the last one asks the hub
        ended = run(*command[1:])
        assert ended.code == 0, ended.err
        assert "max_length" not in ended.err


def refuse_literal(name):
    raise AssertionError(f"{name} is not JSON")


def check_json(folder: Path) -> None:
    """Check that every file of a run is strict JSON, which has no NaN."""
    files = [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]
    assert {"run.json", "metrics.jsonl", "predictions.jsonl", "trainer_state.json"} <= {file.name for file in files}
    for file in files:
        lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        for line in lines:
            json.loads(line, parse_constant=refuse_literal)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [(1, "one row has no correlation"), pytest.param(4, "all gold values are the same", marks=pytest.mark.slow)],
)
def test_a_run_whose_best_metric_is_undefined_keeps_the_step_with_the_lowest_loss(run, tiny_model, rows, reason):
    # the model learns 5 and passes 0.7 on its way there
    texts = [f"film {'very ' * number}good" for number in range(9)]
    Path("r").mkdir()
    write_csv(Path("r/train.csv"), [{"text": text, "label": 5.0} for text in texts])
    write_csv(Path("r/validation.csv"), [{"text": text, "label": 0.7} for text in texts[:rows]])
    options = ["--model", tiny_model, "--data", "r", *LEARN, "--epochs", 9, "--json"]
    ended = run("finetune", "regress", *options, "--set", "training.patience=2", "--learning-rate", "3e-2")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)["results"][0]
    assert result["scores"]["spearmanr"] is None and result["scores"]["mean_absolute_error"] > 0
    assert result["undefined"]["scores"]["spearmanr"] == reason
    assert f"spearmanr is undefined ({reason}), so the step with the lowest loss was selected." in result["warnings"]
    losses = {
        entry["step"]: entry["eval_loss"]
        for entry in read_lines(Path("runs/regress/metrics.jsonl"))
        if "eval_loss" in entry
    }
    record = json.loads(Path("runs/regress/run.json").read_text())
    assert record["best_step"] == min(losses, key=losses.get) < record["steps"]
    assert f"step {record['best_step']}, which had the lowest loss" in Path("runs/regress/README.md").read_text()
    check_json(Path("runs/regress"))
    shown = run("eval", "runs/regress/recipe.yaml", "--model", "runs/regress")
    assert f"training rows: {rows} of {rows} (100.0%)" in shown.out
    assert (shown.code, f"n/a: spearmanr, pearsonr ({reason})" in shown.out) == (0, True)


def test_rows_that_are_truncated_are_counted(run, tiny_model, toy_data):
    rows = toy_rows(96, seed=1)
    rows[5]["text"] = "good " * 100
    write_csv(toy_data / "train.csv", rows)
    ended = finetune(run, tiny_model, toy_data, "--epochs", 0.1)
    assert ended.code == 0, ended.err
    line = "training rows that reach 64 tokens: 1 (1.0%); longer ones are truncated (to read more: "
    assert f"{line}--set options.long_text=windows_mean)" in ended.err


def test_a_run_reads_long_texts_in_its_own_way_whatever_the_recipe_of_eval(run, tiny_model, toy_data):
    way = ["--max-length", 8, "--set", "options.long_text=windows_mean", "--set", "options.overlap=2"]
    ended = finetune(run, tiny_model, toy_data, "--epochs", 1, *way, "--json")
    assert ended.code == 0, ended.err
    assert "training: 96 rows in 1" in ended.err and " overlapping windows of up to 8 tokens" in ended.err
    scores = json.loads(ended.out)["results"][0]["scores"]
    plain = ["classify", "--model", "runs/classify", "--data", toy_data, "--max-length", 8, "--json"]
    again = run("eval", *plain)
    assert "as in its run: long_text windows_mean" in again.err
    assert json.loads(again.out)["results"][0]["scores"] == scores
    other = run("eval", *plain, "--set", "options.long_text=tail")
    assert "trained with long_text windows_mean, used with tail" in other.err


@pytest.mark.parametrize("way", ["tail", "windows_mean", "hierarchical"])
@pytest.mark.slow
def test_a_killed_run_of_windows_resumes_bit_identically(zygote, tiny_model, toy_data, tmp_path, way):
    from tests.kills import TRAINING_STEP, check_equal

    command = ["finetune", "classify", "--model", str(tiny_model), "--data", str(toy_data), "--output", "run"]
    command += [str(part) for part in (*LEARN, "--epochs", 2, "--max-length", 8)]
    command += ["--set", "training.evaluate_every=3", "--set", f"options.long_text={way}", "--set", "options.overlap=2"]
    for name, fault in (("whole", None), ("broken", {"function": TRAINING_STEP, "when": "before", "call": 8})):
        (tmp_path / name).mkdir()
        code, text = zygote.run(tmp_path / name, command, fault)
        assert code == (0 if fault is None else -9), text
    assert zygote.run(tmp_path / "broken", command)[0] == 0
    check_equal(tmp_path / "broken" / "run", tmp_path / "whole" / "run")


def test_a_dry_run_writes_nothing(run, tiny_model, toy_data):
    ended = finetune(run, tiny_model, toy_data, "--dry-run", "--epochs", 2)
    assert ended.code == 0
    assert "rows     train 96, validation 40" in ended.out
    assert "steps    12" in ended.out
    assert not Path("runs").exists()


def test_texts_that_are_truncated_are_told_by_a_dry_run_eval_and_predict(run, tiny_model, toy_data, trained):
    dry = finetune(run, tiny_model, toy_data, "--dry-run", "--max-length", 8)
    assert re.search(r"\d+ of 96 \(\S+%\) of the first 96 training rows are longer than 8 tokens", dry.err)
    assert "longer than" not in finetune(run, tiny_model, toy_data, "--dry-run").err
    for command in (["eval", "--data", toy_data], ["predict", toy_data / "validation.csv"]):
        log_once.cache_clear()
        arguments = [command[0], "classify", *command[1:], "--model", trained, "--set", "training.max_length=8"]
        words = [len(row["text"].split()) for row in toy_rows(40, seed=2)]  # each is a token, beside two special ones
        long, tokens = [count for count in words if count > 6], sum(words) + 2 * len(words)
        share, lost = len(long) / len(words), sum(long) - 6 * len(long)
        line = (
            f"{len(long)} of 40 ({share:.1%}) rows are longer than 8 tokens and truncated: {lost / tokens:.1%} of all"
        )
        assert line in run(*arguments).err


def test_own_rows_by_a_recipe_of_three_lines(run, tiny_model):
    rows = [{"review": row["text"], "stars": {"good": 5, "bad": 1}[row["label"]]} for row in toy_rows(120, seed=5)]
    write_csv(Path("reviews.csv"), rows)
    Path("mine.yaml").write_text(
        "extends: classify\nabout: Stars of reviews\n"
        "data: {source: reviews.csv, columns: {text: review, label: stars}}\n"
    )
    ended = run("finetune", "mine.yaml", "--model", tiny_model, "--epochs", 8, *LEARN, *ONCE, "--json")
    assert ended.code == 0
    assert "11 of 120 (9.2%) rows of reviews.csv are held out" in ended.err
    printed = json.loads(ended.out)["results"][0]
    assert printed["scores"]["accuracy"] > 0.9
    assert AutoModelForSequenceClassification.from_pretrained("runs/mine").config.id2label == {0: "1", 1: "5"}


def test_several_labels_at_once(run, tiny_model):
    good, bad = (
        {"text": row["text"], "label": row["label"]}
        for row in ({"text": "good", "label": "good"}, {"text": "bad", "label": "bad"})
    )
    both = {"text": "good bad", "label": "good|bad"}
    neither = {"text": "film", "label": ""}
    write_csv(Path("m.csv"), [good, bad, both, neither] * 12)
    rows = ["--data", "m.csv", "--set", "data.files.validation=m.csv"]  # equal texts would all be on one side
    options = ["--model", tiny_model, *rows, "--set", "options.multi_label=true", "--epochs", 15, *LEARN, *ONCE]
    ended = run("finetune", "classify", *options, "--seed", 1, "--learning-rate", "1e-2", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"]["accuracy"] > 0.9
    predicted = run(
        "predict", "classify", "--model", "runs/classify", "--text", "good bad", "--set", "options.multi_label=true"
    )
    assert json.loads(predicted.out)["prediction"] == ["bad", "good"]
    forgotten = run("predict", "classify", "--model", "runs/classify", "--text", "good bad")
    assert forgotten.code == 4
    assert "a BertForSequenceClassification for multi_label_classification" in forgotten.last


def test_regression_on_pairs(run, tiny_model):
    words = ["good", "bad", "film", "book"]
    pairs = list(itertools.product(words, words)) * 2
    write_csv(Path("pairs.csv"), [{"a": a, "b": b, "score": 5.0 if b in ("good", "film") else 1.0} for a, b in pairs])
    columns = ["--set", "data.columns={text: a, text_pair: b, label: score}"]
    files = ["--data", "pairs.csv", "--set", "data.files.validation=pairs.csv"]  # equal pairs would be on one side
    options = ["--model", tiny_model, *files, *columns, "--epochs", 12, *LEARN, *ONCE]
    ended = run("finetune", "regress", *options, "--batch-size", 8, "--learning-rate", "5e-3", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"]["pearsonr"] > 0.6
    kept = json.loads(Path("runs/regress/predictions.jsonl").read_text().splitlines()[0])
    row = ["--row", f"text={kept['text']}", "--row", f"text_pair={kept['text_pair']}"]
    predicted = json.loads(run("predict", "regress", "--model", "runs/regress", *row).out)
    assert predicted["prediction"] == pytest.approx(kept["prediction"], abs=1e-5)


def test_a_run_that_named_its_batches_goes_on_with_them_where_the_recipe_is_auto_now():
    from bertkit.recipe import load_recipe
    from bertkit.workflows.finetune import _with_recorded_batching
    from bertkit.workflows.finetune_data import read_finetune_data

    begun, now = (
        read_finetune_data(
            load_recipe("tag", {"model": "demo", "data.source": "demo", "data.limit": 40, **changes}), "run"
        )
        for changes in ({"training.batching": "random"}, {})
    )
    assert now.recipe.training.batching == "auto"
    assert now.plan.widths == (128, 512)  # those of the demo model, whose products are tried
    record = {"identity": dict(begun.plan.identity)}
    assert _with_recorded_batching(now, record).recipe == begun.recipe
    assert _with_recorded_batching(now, {"identity": dict(now.plan.identity)}).recipe == now.recipe


def test_a_run_on_added_rows_keeps_the_head_of_the_run_it_starts_from(run, trained, toy_data):
    kept = finetune(run, trained, toy_data, "--epochs", 1, "--output", "kept")
    assert f"the trained head of {trained} is kept: it has the same labels\n" in kept.err
    assert json.loads(Path("kept/metrics.jsonl").read_text().splitlines()[0])["loss"] < 0.1, "it had learned them"
    rows = [{**row, "label": {"good": "5", "bad": "1"}[row["label"]]} for row in toy_rows(40, seed=5)]
    write_csv(Path("stars.csv"), rows)
    new = finetune(run, trained, "stars.csv", "--epochs", 1, "--output", "new")
    why = f"because the head of {trained} is for the labels bad, good, not 1, 5"
    assert f"new head: randomly initialized, {why}\n" in new.err


def test_steps_replace_epochs(run, tiny_model, toy_data):
    command = ["finetune", "classify", "--model", tiny_model, "--data", toy_data, "--set", "training.steps=8"]
    command += ["--epochs", 5, "--batch-size", 16, "--set", "training.log_every=1"]
    assert "steps    8" in run(*command, "--dry-run").out
    assert run(*command, "--output", "run").code == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 9))
    assert [line["step"] for line in lines if "eval_accuracy" in line] == [6, 8]  # each epoch, and at the end
    results = json.loads(Path("run/train_results.json").read_text())
    assert results["epoch"] == pytest.approx(8 / 6)
    assert results["train_samples"] == json.loads(Path("run/run.json").read_text())["rows"]["train"]
