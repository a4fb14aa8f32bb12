"""Fine-tuning through the command line: what is learned, what is written, what is refused."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.conftest import toy_rows, write_csv

LEARN = ["--batch-size", 16, "--learning-rate", "3e-3", "--set", "training.precision=fp32"]


def finetune(run, model, data, *options):
    return run("finetune", "classify", "--model", model, "--data", data, *LEARN, *options)


def test_a_toy_task_is_solved_and_the_loss_falls(trained):
    scores = json.loads((trained / "run.json").read_text())["results"][0]
    assert scores["scores"]["accuracy"] > 0.95
    assert scores["baseline"]["accuracy"] < 0.7
    low, high = scores["intervals"]["accuracy"]
    assert low <= scores["scores"]["accuracy"] <= high
    losses = [entry["loss"] for entry in read_lines(trained / "metrics.jsonl") if "loss" in entry]
    assert losses[-1] < losses[0] / 4


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_run_folder_is_a_plain_checkpoint_with_real_names(trained):
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    tokenizer = AutoTokenizer.from_pretrained(trained)
    assert model.config.id2label == {0: "bad", 1: "good"}
    answers = [
        model.config.id2label[int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())]
        for text in ("the film was superb", "a very dull book")
    ]
    assert answers == ["good", "bad"]


def test_the_run_folder_holds_all_it_should(trained):
    names = {file.name for file in trained.iterdir()}
    assert names >= {
        *("config.json", "model.safetensors", "tokenizer.json", "recipe.yaml", "run.json", "metrics.jsonl"),
        *("predictions.jsonl", "all_results.json", "train_results.json", "eval_results.json", "trainer_state.json"),
        *("README.md", "report.html"),
    }
    record = json.loads((trained / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["identity"]["recipe"]["training"]["seed"] == 42
    assert set(record["identity"]["data"]) == {"train", "validation"}
    assert len(record["identity"]["model"]) == 64
    assert record["machine"]["threads"] >= 1
    assert record["versions"]["transformers"]
    results = json.loads((trained / "all_results.json").read_text())
    assert results["eval_accuracy"] == record["results"][0]["scores"]["accuracy"]
    assert results["train_samples"] == 400
    assert results["eval_samples"] == 60
    state = json.loads((trained / "trainer_state.json").read_text())
    assert state["global_step"] == record["steps"] == 250
    best = record["best_step"]
    kept = {folder.name for folder in trained.glob("checkpoint-*")}
    assert kept == {f"checkpoint-{best}", "checkpoint-250"}
    best_scores = [e["eval_f1_macro"] for e in read_lines(trained / "metrics.jsonl") if "eval_f1_macro" in e]
    assert max(best_scores) == record["results"][0]["scores"]["f1_macro"]
    predictions = read_lines(trained / "predictions.jsonl")
    assert [p["id"] for p in predictions] == list(range(60))
    assert sum(p["prediction"] == p["label"] for p in predictions) / 60 == results["eval_accuracy"]
    assert all(sum(p["probabilities"].values()) == pytest.approx(1) for p in predictions)
    assert (trained / "model.safetensors").stat().st_mode & 0o444 == 0o444


def test_the_resolved_recipe_runs_again(trained, run):
    printed = json.loads(run("recipes", "show", trained / "recipe.yaml", "--json").out)["recipe"]
    identity = json.loads((trained / "run.json").read_text())["identity"]["recipe"]
    assert printed["training"] == identity["training"]
    assert printed["data"]["columns"] == identity["data"]["columns"]


def test_a_finished_run_says_so_and_another_is_refused(run, tiny_model, toy_data):
    first = finetune(run, tiny_model, toy_data, "--epochs", 1)
    assert first.code == 0
    again = finetune(run, tiny_model, toy_data, "--epochs", 1)
    assert again.code == 0
    assert "already finished on" in again.err
    assert again.out == first.out
    other = finetune(run, tiny_model, toy_data, "--epochs", 2, "--seed", 1)
    assert other.code == 2
    assert other.last == (
        "error: the folder holds another run (recipe.training.epochs: 1.0 there, 2.0 asked; recipe.training.seed: "
        "42 there, 1 asked) (runs/classify) - --output runs/classify-2 for a new run, or --fresh to move the old one "
        "aside"
    )
    with (toy_data / "train.csv").open("a") as stream:
        stream.write("one more,good\n")
    assert "data.train" in finetune(run, tiny_model, toy_data, "--epochs", 1).last
    assert finetune(run, tiny_model, toy_data, "--epochs", 3, "--dry-run").code == 2
    fresh = finetune(run, tiny_model, toy_data, "--epochs", 1, "--fresh")
    assert fresh.code == 0
    assert sorted(folder.name for folder in Path("runs").iterdir()) == ["classify", "classify.before"]


def test_a_folder_of_something_else_is_left_alone(run, tiny_model, toy_data):
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("dear diary")
    ended = finetune(run, tiny_model, toy_data, "--output", "mine")
    expected = "error: the folder holds something that is not a run of bertkit (mine) - choose another --output"
    assert (ended.code, ended.last) == (2, expected)
    assert [file.name for file in Path("mine").iterdir()] == ["notes.txt"]
    Path("file").write_text("")
    assert finetune(run, tiny_model, toy_data, "--output", "file").code == 6


def test_two_processes_never_write_one_run(run, tiny_model, toy_data):
    Path("runs/classify").mkdir(parents=True)
    with Path("runs/classify/.lock").open("w") as held:
        held.write("process 7 on elsewhere")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        ended = finetune(run, tiny_model, toy_data)
    assert (ended.code, ended.last) == (
        6,
        "error: process 7 on elsewhere is writing this run (runs/classify) - wait for it, or choose another --output",
    )


def test_fresh_waits_for_the_lock_too(run, tiny_model, toy_data):
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0
    with Path("runs/classify/.lock").open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert finetune(run, tiny_model, toy_data, "--epochs", 1, "--fresh").code == 6
    assert [folder.name for folder in Path("runs").iterdir()] == ["classify"]


def test_the_next_commands_it_names_work(run, tiny_model, toy_data):
    shown = finetune(run, tiny_model, toy_data, "--epochs", 1, "--max-length", 32).out
    commands = [shlex.split(line) for line in shown.splitlines() if line.startswith("  bertkit ")]
    assert [command[1] for command in commands] == ["predict", "eval"]
    for command in commands:
        ended = run(*command[1:])
        assert ended.code == 0, ended.err
        assert "max_length" not in ended.err


def test_a_dry_run_writes_nothing(run, tiny_model, toy_data):
    ended = finetune(run, tiny_model, toy_data, "--dry-run", "--epochs", 2)
    assert ended.code == 0
    assert "rows     train 96, validation 40" in ended.out
    assert "steps    12" in ended.out
    assert not Path("runs").exists()


def test_a_loss_that_is_no_number_stops_the_run_and_is_never_kept(run, tiny_model, toy_data, monkeypatch):
    from bertkit.training import fit

    honest, calls = fit._Trainer.compute_loss, [0]

    def poisoned(self, *arguments, **keywords):
        calls[0] += 1
        loss = honest(self, *arguments, **keywords)
        if calls[0] == 9:
            with torch.no_grad():
                next(self.model.parameters()).fill_(float("nan"))
        return loss

    monkeypatch.setattr(fit._Trainer, "compute_loss", poisoned)
    ended = finetune(run, tiny_model, toy_data, "--epochs", 3)
    assert ended.code == 7
    assert ended.last == (
        "error: the loss or a weight is not finite at step 10; the last good checkpoint is checkpoint-6 - "
        "try a smaller --learning-rate, or --set training.precision=fp32"
    )
    assert json.loads(Path("runs/classify/run.json").read_text())["status"] == "diverged"
    assert [folder.name for folder in Path("runs/classify").glob("checkpoint-*")] == ["checkpoint-6"]


def test_accumulation_changes_nothing(run, toy_data, still_model):
    losses = []
    for parts in (1, 4):
        setting = f"training.gradient_accumulation={parts}"
        options = ("--epochs", 1, "--output", f"run{parts}", "--set", setting, "--set", "training.log_every=1")
        assert finetune(run, still_model, toy_data, *options).code == 0
        losses.append([e["loss"] for e in read_lines(Path(f"run{parts}/metrics.jsonl")) if "loss" in e])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_batch_computed_in_parts_changes_nothing(run, toy_data, still_model, monkeypatch):
    losses = []
    for most in (2**25, 2**12):
        monkeypatch.setattr("bertkit.training.batching._ATTENTION_BYTES", most)
        options = ("--epochs", 1, "--output", f"run{most}", "--set", "training.log_every=1")
        assert finetune(run, still_model, toy_data, *options).code == 0
        losses.append([e["loss"] for e in read_lines(Path(f"run{most}/metrics.jsonl")) if "loss" in e])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_patience_ends_training_early(run, tiny_model, toy_data):
    options = ("--epochs", 30, "--learning-rate", "1e-8", "--set", "training.patience=2")
    assert finetune(run, tiny_model, toy_data, *options).code == 0
    record = json.loads(Path("runs/classify/run.json").read_text())
    assert (record["best_step"], record["steps"]) == (6, 18)


def test_weights_and_smoothing_reach_the_loss(run, tiny_model, toy_data):
    options = ("--epochs", 1, "--set", "training.class_weights={good: 5}", "--set", "training.label_smoothing=0.1")
    assert finetune(run, tiny_model, toy_data, *options).code == 0
    plain = finetune(run, tiny_model, toy_data, "--epochs", 1, "--output", "plain")
    assert plain.code == 0
    assert (
        read_lines(Path("runs/classify/metrics.jsonl"))[0]["loss"] > read_lines(Path("plain/metrics.jsonl"))[0]["loss"]
    )


def test_extra_arguments_reach_the_trainer_unless_the_recipe_decides_them(run, tiny_model, toy_data):
    assert finetune(run, tiny_model, toy_data, "--epochs", 1, "--set", "training.extra={adam_beta1: 0.5}").code == 0
    optimizer = torch.load("runs/classify/checkpoint-6/optimizer.pt")
    assert optimizer["param_groups"][0]["betas"] == (0.5, 0.999)
    decided = finetune(run, tiny_model, toy_data, "--set", "training.extra={learning_rate: 1}", "--output", "b")
    assert decided.last == ("error: training.extra.learning_rate is decided by training.learning_rate - leave it out")
    wrong = finetune(run, tiny_model, toy_data, "--set", "training.extra={optim: adamm}", "--output", "d")
    assert wrong.code == 2
    assert wrong.last.startswith("error: training.extra is wrong: adamm is not a valid OptimizerNames")
    unknown = finetune(run, tiny_model, toy_data, "--set", "training.extra={adam_beta: 1}", "--output", "c")
    assert unknown.code == 2
    assert "has no field 'adam_beta' - did you mean adam_beta2 or adam_beta1?" in unknown.last


def test_a_run_that_never_got_anywhere_blocks_nothing(run, tiny_model, toy_data):
    assert finetune(run, tiny_model, toy_data, "--set", "training.extra={adam_beta: 1}").code == 2
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0


def test_own_rows_by_a_recipe_of_three_lines(run, tiny_model):
    rows = [{"review": row["text"], "stars": {"good": 5, "bad": 1}[row["label"]]} for row in toy_rows(120, seed=5)]
    write_csv(Path("reviews.csv"), rows)
    Path("mine.yaml").write_text(
        "extends: classify\nabout: Stars of reviews\n"
        "data: {source: reviews.csv, columns: {text: review, label: stars}}\n"
    )
    ended = run("finetune", "mine.yaml", "--model", tiny_model, "--epochs", 8, *LEARN, "--json")
    assert ended.code == 0
    assert "12 of 120 rows of reviews.csv are held out" in ended.err
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
    write_csv(Path("m.csv"), [good, bad, both, neither] * 30)
    options = ["--model", tiny_model, "--data", "m.csv", "--set", "options.multi_label=true", "--epochs", 25, *LEARN]
    ended = run("finetune", "classify", *options, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"]["accuracy"] > 0.9
    predicted = run(
        "predict", "classify", "--model", "runs/classify", "--text", "good bad", "--set", "options.multi_label=true"
    )
    assert json.loads(predicted.out)["prediction"] == ["bad", "good"]
    forgotten = run("predict", "classify", "--model", "runs/classify", "--text", "good bad")
    assert forgotten.code == 4
    assert "trained for multi_label_classification, not single_label_classification" in forgotten.last


def test_regression_on_pairs(run, tiny_model):
    import random

    rng = random.Random(0)
    words = ["good", "bad", "film", "book"]
    rows = []
    for _ in range(300):
        first, second = rng.choice(words), rng.choice(words)
        rows.append({"a": first, "b": second, "score": 5.0 if first == second else 1.0})
    write_csv(Path("pairs.csv"), rows)
    columns = ["--set", "data.columns={text: a, text_pair: b, label: score}"]
    options = ["--model", tiny_model, "--data", "pairs.csv", *columns, "--epochs", 40, *LEARN]
    ended = run("finetune", "regress", *options, "--learning-rate", "2e-3", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"]["pearsonr"] > 0.6  # 0.8 to 1 over seeds
    kept = json.loads(Path("runs/regress/predictions.jsonl").read_text().splitlines()[0])
    row = ["--row", f"text={kept['text']}", "--row", f"text_pair={kept['text_pair']}"]
    predicted = json.loads(run("predict", "regress", "--model", "runs/regress", *row).out)
    assert predicted["prediction"] == pytest.approx(kept["prediction"], abs=1e-5)


def test_signals_are_handled_as_before_afterwards(run, tiny_model, toy_data):
    import signal

    before = signal.getsignal(signal.SIGTERM)
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_two_processes_learn_the_same_as_one(run, still_model, launcher, tmp_path):
    data = tmp_path / "odd"
    data.mkdir()
    write_csv(data / "train.csv", toy_rows(97, seed=1))
    write_csv(data / "validation.csv", toy_rows(41, seed=2))
    settings = ["--epochs", "2", "--set", "training.log_every=1", "--seed", "3"]
    assert finetune(run, still_model, data, *settings, "--output", "one").code == 0
    launch = {
        "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
        "accelerate": ["accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"],
    }[launcher]
    if launcher == "accelerate":
        launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"]
        launch += ["--main_process_port", str(20000 + os.getpid() % 10000)]
    arguments = ["finetune", "classify", "--model", still_model, "--data", data, *LEARN, *settings, "--output", "two"]
    ended = subprocess.run(
        [sys.executable, "-m", *launch, "-m", "bertkit", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    printed = json.loads(ended.stdout)  # one object: only the first process prints
    ours, theirs = read_lines(Path("one/metrics.jsonl")), read_lines(Path("two/metrics.jsonl"))
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        assert one == pytest.approx(two, abs=1e-4)
    assert printed["results"][0]["rows"] == 41
    assert "training" not in ended.stderr or ended.stderr.count("the head is new") == 1


def test_predictions_can_be_opened_as_csv(run, trained):
    write_csv(Path("new.csv"), [{"name": "a", "text": "superb film"}, {"name": "b", "text": "awful, dull film"}])
    ended = run("predict", "classify", "new.csv", "--model", trained, "--output", "out.csv")
    assert ended.code == 0
    with Path("out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["prediction"] for row in rows] == ["good", "bad"]
    assert list(rows[0]) == ["id", "name", "text", "prediction", "probability_bad", "probability_good"]
