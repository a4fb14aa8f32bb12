"""Distillation through the command line: what is learned, kept, resumed, compared and refused."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertkit.distillation import teachers
from bertkit.recipe import load_recipe
from bertkit.storage.cache import cache_folder
from bertkit.workflows.steps.finetune_inputs import read_inputs
from tests.conftest import toy_rows, write_csv
from tests.test_habits import imported_by
from tests.workflows.test_finetune import read_lines
from tests.workflows.test_resume import check_equal

FAST = ["--batch-size", 16, "--learning-rate", "3e-3", "--set", "training.precision=fp32"]


def distill(run, teacher, data, *options, recipe="classify"):
    return run("distill", recipe, "--teacher", teacher, "--data", data, *FAST, *options)


@pytest.fixture
def wrong_data(tmp_path: Path) -> Path:
    """Rows whose training labels are drawn by lot: gold says nothing."""
    folder = tmp_path / "wrong"
    folder.mkdir()
    lot = random.Random(5)
    rows = [{**row, "label": lot.choice(["good", "bad"])} for row in toy_rows(400, seed=11)]
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "validation.csv", toy_rows(60, seed=12))
    return folder


def test_a_student_learns_from_its_teacher_what_gold_does_not_say(run, trained, tiny_model, wrong_data):
    options = ("--model", tiny_model, "--epochs", 8, "--output", "student")
    ended = distill(run, trained, wrong_data, "--soft-weight", 1, *options)
    assert ended.code == 0, ended.err
    record = json.loads(Path("student/run.json").read_text())
    assert record["results"][0]["scores"]["accuracy"] > 0.9  # of true labels, which only the teacher knows
    logged = [entry for entry in read_lines(Path("student/metrics.jsonl")) if "loss" in entry]
    assert all(entry["loss"] == pytest.approx(entry["loss_soft"], abs=1e-4) for entry in logged)
    assert logged[-1]["loss_soft"] < logged[0]["loss_soft"] / 2
    assert logged[-1]["loss_gold"] > 0.5


def test_the_loss_is_the_weighted_sum_of_what_is_logged(run, trained, tiny_model, toy_data):
    distill(
        run,
        trained,
        toy_data,
        "--model",
        tiny_model,
        "--soft-weight",
        0.3,
        "--epochs",
        1,
        "--set",
        "training.log_every=2",
    )
    logged = [entry for entry in read_lines(Path("runs/classify/metrics.jsonl")) if "loss" in entry]
    assert logged
    for entry in logged:
        assert entry["loss"] == pytest.approx(0.7 * entry["loss_gold"] + 0.3 * entry["loss_soft"], abs=1e-4)


def test_teachers_and_student_stand_side_by_side(run, trained, tiny_model, toy_data):
    options = ("--teacher", trained, "--model", tiny_model, "--epochs", 1, "--output", "student")
    ended = distill(run, trained, toy_data, *options)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    title = lines.index("  size and speed on this machine")
    head, first, second, student = lines[title + 1 : title + 5]
    assert head.split()[:2] == ["model", "parameters"]
    assert [line.split()[0] for line in (first, second, student)] == ["teacher", "teacher", "student"]
    printed = json.loads(distill(run, trained, toy_data, *options, "--json").out)
    one, _, last = printed["compared_models"]
    assert (one["role"], one["model"], last["model"]) == ("teacher", str(trained), "student")
    assert last["scores"] == printed["results"][0]["scores"]
    apart = last["scores"]["accuracy"] - one["scores"]["accuracy"]
    assert one["difference"]["accuracy"] == pytest.approx(apart)
    low, high = one["difference_intervals"]["accuracy"]
    assert low <= apart <= high
    assert last["difference"] == {}
    assert (
        one["parameters"]
        == last["parameters"]
        == sum(t.numel() for t in load_file("student/model.safetensors").values())
    )
    assert last["disk_bytes"] == Path("student/model.safetensors").stat().st_size
    assert all(each["row_seconds"] > 0 and each["rows_per_second"] > 0 for each in printed["compared_models"])
    assert f"taught by {trained}, {trained}" in Path("student/README.md").read_text()
    assert "<dt>Teachers</dt>" in Path("student/report.html").read_text()


def test_the_student_of_some_layers_begins_with_them_and_ends_as_a_plain_checkpoint(run, trained, toy_data):
    from transformers import AutoModelForSequenceClassification

    ended = distill(run, trained, toy_data, "--student-layers", 1, "--epochs", 1, "--output", "student")
    assert ended.code == 0, ended.err
    assert "the head is new" not in ended.err
    model = AutoModelForSequenceClassification.from_pretrained("student")
    assert model.config.num_hidden_layers == 1
    assert run("eval", "student/recipe.yaml", "--model", "student", "--data", toy_data).code == 0
    assert f"1 layers of {trained}" in Path("student/report.html").read_text()
    assert "teacher" in Path("student/recipe.yaml").read_text()
    again = run("finetune", "student/recipe.yaml", "--output", "again")
    assert again.code == 0, again.err
    ours, theirs = (load_file(f"{folder}/model.safetensors") for folder in ("student", "again"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_teachers_are_asked_once_and_a_damaged_file_is_noticed(
    run, trained, tiny_model, wrong_data, monkeypatch, tmp_path
):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    asked = []
    load = teachers.Teacher.load
    monkeypatch.setattr(teachers.Teacher, "load", lambda *given: asked.append(given) or load(*given))

    def once(name, *options):
        ended = distill(run, trained, wrong_data, "--model", tiny_model, "--epochs", 1, "--output", name, *options)
        assert ended.code == 0, ended.err
        return ended, load_file(f"{name}/model.safetensors")

    first, weights = once("one")
    (kept,) = cache_folder("teachers").iterdir()
    second, same = once("two")
    assert len(asked) == 1
    assert "read from" in second.err and "read from" not in first.err
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(bytes(content))
    third, same = once("three")
    assert len(asked) == 2
    assert "they are computed again" in third.err
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    once("four", "--set", "data.cache=false")
    assert len(asked) == 3


def answers_of(teacher, data, model, **changes):
    """Give what teachers say of the training rows, through the very functions of a run."""
    from bertkit.evaluation.checkpoint import Checkpoint
    from bertkit.hardware.precision import Machine
    from bertkit.modeling import load as models
    from bertkit.progress import SILENT
    from bertkit.tokens.feature_cache import encode_split
    from bertkit.tokens.features import Setup

    named = {"model": str(model), "data.source": str(data), "data.cache": False, "distillation.teachers": teacher}
    inputs = read_inputs(load_recipe("classify", {**named, **changes}), "nowhere")
    setup = Setup(inputs.recipe, models.load_tokenizer(inputs.model_folder), inputs.labels)
    split = inputs.splits["train"]
    features = encode_split(split, setup, inputs.task.encode)
    student = Checkpoint(None, inputs.task, setup, Machine("cpu", "fp32", 1, ""))
    return teachers.compute_teacher_logits(inputs.supervision.teachers, student, split, features, SILENT)["logits"]


@pytest.fixture
def turned(trained, tmp_path) -> Path:
    """The same teacher with its labels the other way round."""
    folder = Path(shutil.copytree(trained, tmp_path / "turned"))
    config = json.loads((folder / "config.json").read_text())
    config.update(id2label={"0": "good", "1": "bad"}, label2id={"good": 0, "bad": 1})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_labels_are_matched_by_name_and_several_teachers_by_their_mean(trained, turned, tiny_model, toy_data):
    one = torch.from_numpy(np.stack(answers_of([str(trained)], toy_data, tiny_model)))
    other = torch.from_numpy(np.stack(answers_of([str(turned)], toy_data, tiny_model)))
    assert torch.equal(one, other.flip(-1))
    mean = torch.from_numpy(np.stack(answers_of([str(trained), str(turned)], toy_data, tiny_model)))
    assert torch.allclose(mean, (one + other) / 2)
    reordered = torch.from_numpy(np.stack(answers_of([str(trained)], toy_data, tiny_model, labels=["good", "bad"])))
    assert torch.equal(reordered, one.flip(-1))


@pytest.fixture(scope="module")
def narrow_demo(tmp_path_factory) -> Path:
    """A student of the demo model's words that is narrower than the demo model, and without dropout."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from bertkit.hub import find_model

    folder = tmp_path_factory.mktemp("narrow") / "demo"
    config = BertConfig.from_pretrained(find_model("demo"))
    config.update({"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2})
    torch.manual_seed(1)
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(find_model("demo")).save_pretrained(folder)
    return folder


SOME = ["--data", "demo", "--limit", "40", "--set", "training.precision=fp32", "--set", "training.batch_size=8"]
HIDDEN = ["--set", "distillation.hidden=uniform"]
STUDENTS = {
    "soft": ["--student-layers", "0,2"],
    "matched": ["--student-layers", "2", *HIDDEN, "--set", "distillation.attention={0: 1}"],
    "projected": ["--model", "narrow", *HIDDEN],
}


@pytest.fixture(scope="module")
def demo_teacher(zygote, tmp_path_factory) -> str:
    """The demo model, fine-tuned for a moment."""
    folder = tmp_path_factory.mktemp("teacher")
    code, text = zygote.run(
        folder, ["finetune", "classify", "--model", "demo", *SOME, "--epochs", "1", "--output", "t"]
    )
    assert code == 0, text
    return str(folder / "t")


@pytest.mark.parametrize("student", list(STUDENTS))
def test_a_kill_changes_nothing(zygote, demo_teacher, narrow_demo, tmp_path_factory, student):
    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    options = [str(narrow_demo) if word == "narrow" else word for word in STUDENTS[student]]
    arguments = ["distill", "classify", "--teacher", demo_teacher, *options, *SOME, "--epochs", "2", "--output", "run"]
    arguments += ["--set", "training.evaluate_every=3", "--set", "training.log_every=2"]
    code, text = zygote.run(whole, arguments)
    assert code == 0, text
    assert zygote.run(broken, arguments, {"function": "transformers.trainer.Trainer.training_step", "call": 8})[0] == -9
    code, text = zygote.run(broken, arguments)
    assert code == 0, text
    assert "resuming run" in text
    check_equal(broken / "run", whole / "run")
    assert not any("projections" in name for name in load_file(broken / "run" / "model.safetensors"))


def test_a_kill_before_the_comparison_leaves_only_that_to_do(zygote, demo_teacher, tmp_path):
    arguments = ["distill", "classify", "--teacher", demo_teacher, "--student-layers", "1", *SOME, "--epochs", "1"]
    arguments += ["--output", "run"]
    assert zygote.run(tmp_path, arguments, {"function": "bertkit.workflows.distill._compare"})[0] == -9
    code, text = zygote.run(tmp_path, arguments)
    assert code == 0, text
    assert "already finished on" in text
    assert "student run" in text


@pytest.mark.parametrize("recipe", ["classify", "regress", "ner", "choose", "squad2", "wsd"])
def test_every_family_is_distilled(run, recipe):
    assert run("finetune", recipe, "--model", "demo", *SOME, "--epochs", 1, "--output", "t").code == 0
    options = ("--student-layers", "0,2", "--epochs", 1, "--output", "s", *HIDDEN, "--soft-weight", 1)
    ended = run("distill", recipe, "--teacher", "t", *SOME, *options)
    assert ended.code == 0, ended.err
    logged = [entry for entry in read_lines(Path("s/metrics.jsonl")) if "loss" in entry]
    assert all(set(entry) >= {"loss_gold", "loss_soft", "loss_hidden"} for entry in logged)
    assert all(entry["loss"] == pytest.approx(entry["loss_soft"] + entry["loss_hidden"], abs=1e-3) for entry in logged)


def test_several_labels_at_once_are_distilled(run, tiny_model, tmp_path):
    folder = tmp_path / "several"
    folder.mkdir()
    rows = [
        {**row, "label": f"{row['label']}|short" if len(row["text"]) < 30 else row["label"]} for row in toy_rows(80, 3)
    ]
    write_csv(folder / "train.csv", rows[:60])
    write_csv(folder / "validation.csv", rows[60:])
    several = ("--data", folder, *FAST, "--epochs", 2, "--set", "options.multi_label=true")
    assert run("finetune", "classify", "--model", tiny_model, *several, "--output", "t").code == 0
    ended = run("distill", "classify", "--teacher", "t", "--model", tiny_model, *several, "--output", "s")
    assert ended.code == 0, ended.err


@pytest.fixture
def other_words(tiny_model, tmp_path) -> Path:
    """The tiny model with two words of its vocabulary exchanged."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    content = json.loads((folder / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["good"], words["bad"] = words["bad"], words["good"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


MISTAKES = [
    (["--model", "{tiny}"], 2, "no teacher to learn from - --teacher DIR, a checkpoint fine-tuned for this task"),
    (["--teacher", "./nowhere", "--model", "{tiny}"], 4, "no such directory: ./nowhere"),
    (["--teacher", "{tiny}", "--model", "{tiny}"], 4, "no trained head for this task (it is a BertModel) ({tiny})"),
    (
        ["--teacher", "{named}", "--model", "{tiny}"],
        4,
        "the checkpoint's labels (bad, fine) are not the recipe's (bad, good) ({named})",
    ),
    (
        ["--teacher", "{trained}", "--model", "{other}"],
        4,
        "the teacher {trained} tokenizes texts differently from the student",
    ),
    (
        ["--teacher", "{trained}", "--model", "{tiny}", "--temperature", "0"],
        2,
        "distillation.temperature = 0.0 is out of range",
    ),
    (
        ["--teacher", "{trained}", "--model", "{tiny}", "--soft-weight", "1.5"],
        2,
        "distillation.soft_weight = 1.5 is out of range",
    ),
    (["--teacher", "{trained}", "--model", "{tiny}", "--student-layers", "1"], 2, "--model and --student-layers"),
    (
        ["--teacher", "{trained}", "--student-layers", "0,2"],
        2,
        "student_layers 0, 2: the first teacher has 2 layers - number them from 0 to 1",
    ),
    (["--teacher", "{trained}", "--student-layers", "3"], 2, "student_layers 3: the first teacher has 2 layers"),
    (
        ["--teacher", "{trained}", "--student-layers", "1,0"],
        2,
        "distillation.student_layers = '1,0' is wrong: must be layers that rise",
    ),
    (
        [
            "--teacher",
            "{trained}",
            "--teacher",
            "{trained}",
            "--student-layers",
            "1",
            "--set",
            "distillation.hidden=last",
        ],
        2,
        "hidden states and attention are those of one teacher",
    ),
    (
        [
            "--teacher",
            "{trained}",
            "--student-layers",
            "1",
            "--set",
            "data.streaming=true",
            "--set",
            "training.steps=5",
            "--set",
            "labels=[bad, good]",
        ],
        2,
        "teachers need all training rows",
    ),
    (
        [
            "--teacher",
            "{trained}",
            "--student-layers",
            "1",
            "--set",
            "distillation.hidden=last",
            "--set",
            "training.gradient_checkpointing=true",
        ],
        2,
        "layers that are computed twice cannot be matched",
    ),
    (
        ["--teacher", "{trained}", "--student-layers", "1", "--set", "distillation.teacher=x"],
        2,
        "unknown key 'distillation.teacher' - did you mean teachers?",
    ),
]


@pytest.mark.parametrize(("options", "code", "line"), MISTAKES, ids=lambda value: None)
def test_mistakes_end_in_one_line(run, trained, tiny_model, other_words, toy_data, tmp_path, options, code, line):
    named = Path(shutil.copytree(trained, tmp_path / "named"))
    config = json.loads((named / "config.json").read_text())
    (named / "config.json").write_text(json.dumps({**config, "id2label": {"0": "bad", "1": "fine"}}))
    places = {"tiny": tiny_model, "trained": trained, "other": other_words, "named": named}
    ended = run("distill", "classify", "--data", toy_data, *(word.format(**places) for word in options), "--dry-run")
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert ended.last.startswith(f"error: {line.format(**places)}"), ended.last
    assert not Path("runs").exists()


def test_teachers_are_checked_before_torch_is_imported(trained, toy_data, tmp_path):
    arguments = ("distill", "classify", "--teacher", str(trained), "--student-layers", "3", "--data", str(toy_data))
    assert imported_by(*arguments, folder=tmp_path) <= {"numpy"}


def test_a_teacher_of_another_task_or_of_a_frozen_encoder_is_refused(run, trained):
    assert run("finetune", "regress", "--model", "demo", *SOME, "--epochs", 1, "--output", "numbers").code == 0
    features = ("--set", "options.tagger_size=8")
    assert (
        run("finetune", "ner-features", "--model", "demo", *SOME, *features, "--epochs", 1, "--output", "tags").code
        == 0
    )
    ended = run("distill", "squad", "--teacher", "numbers", "--model", "demo", *SOME)
    assert ended.code == 4
    assert "the head was trained for regression" in ended.last
    ended = run("distill", "ner", "--teacher", "tags", "--model", "demo", *SOME)
    assert (ended.code, ended.last) == (
        4,
        "error: the teacher tags is a head over a frozen encoder - distillation is for models that are fine-tuned as a "
        "whole",
    )
    assert run("finetune", "wsd", "--model", "demo", *SOME, "--epochs", 1, "--output", "senses").code == 0
    ended = run("distill", "wsd-nearest", "--teacher", "senses", "--model", "demo", *SOME)
    assert ended.code == 4
    assert ended.last.startswith("error: wsd-nearest trains a head over a frozen encoder, or nothing")


def test_the_plan_names_the_student_and_nothing_is_written(run, trained, toy_data):
    ended = distill(run, trained, toy_data, "--student-layers", 1, "--dry-run")
    assert ended.code == 0, ended.err
    assert f"teachers: [{trained}]" in ended.out
    assert list(Path.cwd().iterdir()) == []


def test_another_teacher_is_another_run(run, trained, turned, tiny_model, toy_data):
    assert distill(run, trained, toy_data, "--model", tiny_model, "--epochs", 1).code == 0
    ended = distill(run, turned, toy_data, "--model", tiny_model, "--epochs", 1)
    assert ended.code == 2
    assert "the folder holds another run (teachers: " in ended.last


def test_two_processes_learn_what_one_learns(run, trained, still_model, toy_data):
    matched = ("--model", still_model, "--epochs", 1, "--set", "training.log_every=1", *HIDDEN)
    assert distill(run, trained, toy_data, *matched, "--output", "one").code == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bertkit"]
    arguments = ["distill", "classify", "--teacher", trained, "--data", toy_data, *FAST, *matched, "--output", "two"]
    ended = subprocess.run([*launch, *map(str, arguments), "--json"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert [each["role"] for each in json.loads(ended.stdout)["compared_models"]] == ["teacher", "student"]
    for one, two in zip(*(read_lines(Path(name) / "metrics.jsonl") for name in ("one", "two")), strict=True):
        assert one == pytest.approx(two, abs=1e-4)
