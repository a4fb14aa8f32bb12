"""Distillation of soft labels in a column: with and without gold labels, resumed, scored, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertkit.recipe import load_recipe
from bertkit.workflows.finetune_data import read_finetune_data
from tests.conftest import LEARN, toy_rows, write_csv, write_jsonl
from tests.kills import TRAINING_STEP, check_equal, read_lines

SOFT = ["--soft-labels", "chance"]


def soften(rows, *, gold=True):
    """Add probabilities that are right, but not certain; without gold labels, only these know the label."""
    draw = random.Random(1)
    for row in rows:
        other, high = "bad" if row["label"] == "good" else "good", draw.uniform(0.6, 0.9)
        soft = {**row, "chance": {row["label"]: high, other: 1 - high}}
        yield soft if gold else {name: soft[name] for name in ("text", "chance")}


@pytest.fixture
def unlabeled(toy_data) -> Path:
    """Training rows with soft labels only, next to validation rows with gold labels only."""
    (toy_data / "train.csv").unlink()
    write_jsonl(toy_data / "train.jsonl", soften(toy_rows(400, seed=3), gold=False))
    return toy_data


def distill(run, model, data, *options):
    return run("distill", "classify", "--model", model, "--data", data, *SOFT, *LEARN, *options)


def test_a_student_learns_from_soft_labels_alone(run, tiny_model, unlabeled):
    options = ("--epochs", 3, "--set", "training.log_every=5", "--output", "student")
    ended = distill(run, tiny_model, unlabeled, *options)
    assert ended.code == 0, ended.err
    assert "train.jsonl has no gold labels, so the loss has only the soft term" in ended.err
    record = json.loads(Path("student/run.json").read_text())
    assert record["results"][0]["scores"]["accuracy"] > 0.9
    assert "compared_models" not in record
    assert record["identity"]["recipe"]["distillation"]["soft_weight"] == 1
    assert "the soft labels in column 'chance'" in Path("student/README.md").read_text()
    logged = [entry for entry in read_lines(Path("student/metrics.jsonl")) if "loss" in entry]
    assert all(entry["loss"] == pytest.approx(entry["loss_soft"], abs=1e-4) for entry in logged)
    assert run("eval", "student").code == 0
    assert "already finished" in distill(run, tiny_model, unlabeled, *options).err
    # The probabilities are a part of the run's identity.
    rows = read_lines(unlabeled / "train.jsonl")
    write_jsonl(unlabeled / "train.jsonl", [{**rows[0], "chance": {"good": 0.5, "bad": 0.5}}, *rows[1:]])
    changed = distill(run, tiny_model, unlabeled, *options)
    assert (changed.code, "data.train" in changed.last) == (2, True), changed.err


def test_the_agreement_with_gold_labels_is_printed_and_kept(run, tiny_model, tmp_path):
    rows = list(soften(toy_rows(60, seed=3)))
    for row in rows[:6]:
        row["chance"] = dict(zip(row["chance"], reversed(row["chance"].values()), strict=True))
    write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ("distill", "classify", "--model", tiny_model, "--data", tmp_path / "rows.jsonl", *SOFT)
    ended = run(*command, "--set", "data.files.validation=" + str(tmp_path / "rows.jsonl"), "--epochs", 0.2)
    assert ended.code == 0, ended.err
    assert "the most probable soft label is gold in 90.0% of training rows (Cohen's kappa 0." in ended.err
    record = json.loads(Path("runs/classify-distilled/run.json").read_text())
    assert record["soft_labels"]["agreement"] == pytest.approx(0.9)
    assert "| soft labels: agreement | 0.9000 |" in Path("runs/classify-distilled/README.md").read_text()
    in_wrong_order = [[row["chance"]["good"], row["chance"]["bad"]] for row in rows]
    lists = [{**row, "chance": chance} for row, chance in zip(rows, in_wrong_order, strict=True)]
    write_jsonl(tmp_path / "rows.jsonl", lists)
    swapped = run(*command, "--set", "labels=[bad, good]", "--output", "lists", "--dry-run")
    assert (swapped.code, "warning: soft labels seem to be in the wrong order" in swapped.err) == (0, True)


def test_soft_labels_move_no_row(tiny_model, tmp_path):
    """The same rows are held out, drawn and recognized as training rows as without soft labels."""
    file = tmp_path / "rows.jsonl"
    write_jsonl(file, soften(toy_rows(80, seed=3)))
    changes = {"model": str(tiny_model), "data.source": str(file), "data.train_limit": 20}
    plain = read_finetune_data(load_recipe("classify", changes), tmp_path / "a")
    soft = read_finetune_data(
        load_recipe("classify", {**changes, "distillation.soft_labels": "chance"}), tmp_path / "b"
    )
    texts = [[row["text"] for row in data.splits["train"].rows] for data in (plain, soft)]
    assert texts[0] == texts[1]
    assert (plain.training_digests == soft.training_digests).all()
    validation, train = (
        [data.plan.identity["data"][name] for data in (plain, soft)] for name in ("validation", "train")
    )
    assert validation[0] == validation[1]
    assert train[0] != train[1]


@pytest.mark.slow
def test_a_kill_changes_nothing_and_seeds_are_such_runs(zygote, tiny_model, tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", soften(toy_rows(120, seed=3)))
    data = ["--model", str(tiny_model), "--data", "rows.jsonl", *map(str, LEARN), "--epochs", "2"]
    data += ["--set", "training.evaluate_every=3", "--seed"]
    command = ["distill", "classify", *SOFT, *data]
    assert zygote.run(tmp_path, [*command, "2", "--output", "whole"])[0] == 0
    broken = [*command, "2", "--output", "broken"]
    assert zygote.run(tmp_path, broken, {"function": TRAINING_STEP, "call": 8})[0] == -9
    code, text = zygote.run(tmp_path, broken)
    assert (code, "resuming" in text) == (0, True)
    check_equal(tmp_path / "broken", tmp_path / "whole")
    seeds = ["finetune", "classify", "--set", "distillation.soft_labels=chance", *data[:-1], "--seeds", "1,2"]
    assert zygote.run(tmp_path, [*seeds, "--output", "seeds"])[0] == 0
    ours, theirs = (load_file(tmp_path / folder / "model.safetensors") for folder in ("whole", "seeds/seed-2"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert zygote.run(tmp_path, ["rerun", "whole"])[0] == 0


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ('{"good": 2, "bad": 1}', "probabilities add up to 3, not 1 ({file}:4, column 'chance') - for counts:"),
        ("", "'' is not a probability per label ({file}:4, column 'chance') - write {"),
        (
            '{"good": 0.5, "odd": 0.5}',
            "'odd' is not one of the labels ({file}:4, column 'chance') - there are: bad, good",
        ),
        ('{"good": 0.5, "-1": 0.5}', "'-1' is not one of the labels ({file}:4, column 'chance')"),
        ("[0.5, 0.5]", "a list of 2 probabilities, but the recipe declares 0 labels ({file}:4, column 'chance')"),
    ],
)
def test_a_wrong_cell_ends_in_one_line(run, tiny_model, toy_data, cell, message):
    rows = [{**row, "chance": json.dumps(row["chance"])} for row in soften(toy_rows(30, seed=3))]
    rows[2]["chance"] = cell
    file = toy_data / "train.csv"
    write_csv(file, rows)
    ended = distill(run, tiny_model, toy_data)
    assert (ended.code, ended.last.startswith(f"error: {message.replace('{file}', str(file))}")) == (3, True), ended.err


@pytest.mark.parametrize(
    ("recipe", "options", "code", "message"),
    [
        ("classify", ["--teacher", "runs/a"], 2, "distillation.soft_labels replaces teachers"),
        (
            "classify",
            ["--set", "distillation.hidden=last"],
            2,
            "distillation.soft_labels replaces teachers",
        ),
        ("classify", ["--set", "options.multi_label=true"], 2, "distillation.soft_labels is for one label per text"),
        ("classify", ["--set", "options.long_text=windows_mean"], 2, "a student learns from one input per row"),
        ("ner", [], 2, "distillation.soft_labels is for one label per text"),
        ("few-shot", [], 2, "distillation.soft_labels is for one label per text"),
        ("distilbert", [], 2, "distilbert is a pretraining recipe"),
        ("classify", ["--soft-labels", "chances"], 3, "no column 'chances'"),
        ("classify", [], 3, "no gold labels, which validation rows need"),
    ],
)
def test_what_has_no_soft_labels_is_refused(run, tiny_model, recipe, options, code, message):
    write_jsonl(Path("rows.jsonl"), soften(toy_rows(30, seed=3), gold=message[:7] != "no gold"))
    model = [] if recipe == "distilbert" else ["--model", tiny_model]
    ended = run("distill", recipe, "--data", "rows.jsonl", *model, *SOFT, *options)
    assert (ended.code, message in ended.last) == (code, True), ended.err
