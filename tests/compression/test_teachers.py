"""Teachers: checked before anything is loaded, run once over the training rows, matched by the names of labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertkit.compression import teachers
from bertkit.recipe import load_recipe
from bertkit.storage.cache import cache_folder
from bertkit.workflows.finetune_data import read_finetune_data
from tests.conftest import DEMO_ROWS, distill
from tests.kills import HEAVY

pytestmark = pytest.mark.usefixtures("timed_once")


@pytest.mark.slow
def test_teachers_are_run_once_and_a_damaged_file_is_noticed(run, trained, tiny_model, toy_data, monkeypatch, tmp_path):
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    loaded = []
    load = teachers.Teacher.load
    monkeypatch.setattr(teachers.Teacher, "load", lambda *arguments: loaded.append(arguments) or load(*arguments))

    def once(name, *options):
        ended = distill(run, trained, toy_data, "--model", tiny_model, "--epochs", 1, "--output", name, *options)
        assert ended.code == 0, ended.err
        return ended, load_file(f"{name}/model.safetensors")

    first, weights = once("one")
    (kept,) = cache_folder("teachers").iterdir()
    second, same = once("two")
    assert len(loaded) == 1
    assert "read from" in second.err and "read from" not in first.err
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(bytes(content))
    third, same = once("three")
    assert len(loaded) == 2
    assert "is damaged; recomputing it" in third.err
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    once("four", "--set", "data.cache=false")
    assert len(loaded) == 3


def teacher_logits(teacher, data, model, **changes):
    """Return the mean teacher logits of the training rows, through the very functions of a run."""
    from bertkit.evaluation.checkpoint import Checkpoint
    from bertkit.hardware.precision import ComputeConfig
    from bertkit.modeling.tokenizer import load_tokenizer
    from bertkit.tokens.feature_cache import encode_split
    from bertkit.tokens.features import TaskContext

    named = {"model": str(model), "data.source": str(data), "data.cache": False, "distillation.teachers": teacher}
    inputs = read_finetune_data(load_recipe("classify", {**named, **changes}), "nowhere")
    context = TaskContext(inputs.recipe, load_tokenizer(inputs.model_folder), inputs.labels)
    split = inputs.splits["train"]
    features = encode_split(split, context, inputs.task.encode)
    student = Checkpoint(None, inputs.task, context, ComputeConfig("cpu", "fp32", 1, ""))
    return teachers.compute_teacher_logits(inputs.teachers, student, split, features)["logits"]


@pytest.fixture
def turned(trained, tmp_path) -> Path:
    """The same teacher with its labels the other way round."""
    folder = Path(shutil.copytree(trained, tmp_path / "turned"))
    config = json.loads((folder / "config.json").read_text())
    config.update(id2label={"0": "good", "1": "bad"}, label2id={"good": 0, "bad": 1})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "run.json").unlink()  # it has the checksum of the config
    return folder


def test_labels_are_matched_by_name_and_several_teachers_by_their_mean(trained, turned, tiny_model, toy_data):
    one = torch.from_numpy(np.stack(teacher_logits([str(trained)], toy_data, tiny_model)))
    other = torch.from_numpy(np.stack(teacher_logits([str(turned)], toy_data, tiny_model)))
    assert torch.equal(one, other.flip(-1))
    mean = torch.from_numpy(np.stack(teacher_logits([str(trained), str(turned)], toy_data, tiny_model)))
    assert torch.allclose(mean, (one + other) / 2)
    reordered = torch.from_numpy(np.stack(teacher_logits([str(trained)], toy_data, tiny_model, labels=["good", "bad"])))
    assert torch.equal(reordered, one.flip(-1))


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
    (
        ["--model", "{tiny}"],
        2,
        "no teacher to learn from - add --teacher DIR, fine-tuned for this task, or --soft-labels COLUMN",
    ),
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
        "distillation.student_layers = '1,0' is wrong: must be layers in ascending order",
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
        "hidden states and attention can be matched with one teacher only",
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
    (named / "run.json").unlink()  # it has the checksum of the config
    folders = {"tiny": tiny_model, "trained": trained, "other": other_words, "named": named}
    ended = run("distill", "classify", "--data", toy_data, *(word.format(**folders) for word in options), "--dry-run")
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert ended.last.startswith(f"error: {line.format(**folders)}"), ended.last
    assert not Path("runs").exists()


def test_teachers_are_checked_before_torch_is_imported(light_zygote, trained, toy_data, tmp_path):
    arguments = ["distill", "classify", "--teacher", trained, "--student-layers", "3", "--data", toy_data]
    imported = light_zygote.imports(tmp_path, arguments)
    assert "bertkit" in imported
    assert HEAVY & imported <= {"numpy"}


@pytest.mark.slow
def test_a_teacher_of_another_task_or_of_a_frozen_encoder_is_refused(run, trained):
    assert run("finetune", "regress", "--model", "demo", *DEMO_ROWS, "--epochs", 1, "--output", "numbers").code == 0
    features = ("--set", "options.tagger_size=8", "--epochs", 1, "--output", "tags")
    assert run("finetune", "ner-features", "--model", "demo", *DEMO_ROWS, *features).code == 0
    ended = run("distill", "squad", "--teacher", "numbers", "--model", "demo", *DEMO_ROWS)
    assert ended.code == 4
    assert "no trained head for this task (it is a BertForSequenceClassification for regression)" in ended.last
    ended = run("distill", "ner", "--teacher", "tags", "--model", "demo", *DEMO_ROWS)
    assert (ended.code, ended.last) == (
        4,
        "error: the teacher tags is a head over a frozen encoder - distillation is for models that are fine-tuned as a "
        "whole",
    )
    assert run("finetune", "wsd", "--model", "demo", *DEMO_ROWS, "--epochs", 1, "--output", "senses").code == 0
    ended = run("distill", "wsd-nearest", "--teacher", "senses", "--model", "demo", *DEMO_ROWS)
    assert ended.code == 4
    assert ended.last.startswith("error: wsd-nearest trains a head over a frozen encoder, or nothing")


def test_another_teacher_is_another_run(run, trained, turned, tiny_model, toy_data):
    assert distill(run, trained, toy_data, "--model", tiny_model, "--epochs", 1).code == 0
    ended = distill(run, turned, toy_data, "--model", tiny_model, "--epochs", 1)
    assert ended.code == 2
    assert "the folder holds another run (teachers: " in ended.last
