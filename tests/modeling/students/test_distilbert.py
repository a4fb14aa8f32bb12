"""`bertkit pretrain distilbert`: a student to load and to finetune, bit for bit the same after a kill."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import WORDS
from tests.kills import check_kill
from tests.pretraining.objectives.test_distil import save_teacher


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("distilbert")
    random = np.random.default_rng(0)
    words = [word for group in WORDS.values() for word in group]
    lines = [" ".join(random.choice(words, size=int(random.integers(4, 14)))) for _ in range(80)]
    (folder / "text").mkdir()
    (folder / "text" / "train.txt").write_text("\n\n".join(lines[:60]))
    (folder / "text" / "validation.txt").write_text("\n\n".join(lines[60:]))
    teacher = save_teacher(folder / "teacher")
    settings = ["training.evaluate_every=3", "training.log_every=1", "training.precision=fp32"]
    arguments = ["pretrain", "distilbert", "--model", str(teacher), "--data", str(folder / "text"), "--output", "run"]
    arguments += ["--batch-size", "4", "--steps", "8", "--max-length", "24"]
    return arguments + [part for setting in settings for part in ("--set", setting)]


def test_a_run_leaves_a_student_beside_its_teacher(command, run):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    ended = run(*command)
    assert ended.code == 0, ended.err
    assert "teacher and student" in ended.out
    result = json.loads(Path("run/run.json").read_text())["result"]
    teacher, student = result["compared_models"]
    assert (teacher["role"], student["role"]) == ("teacher", "student")
    assert teacher["parameters"] > student["parameters"] == result["parameters"]
    assert list(result["baselines"]["token frequencies"]) == ["perplexity"]
    assert "A student of" in Path("run/README.md").read_text()
    logged = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert {"loss_soft", "loss_mlm", "loss_cosine"} <= {name for entry in logged for name in entry}
    for file in [Path("run/model.safetensors"), *Path("run").glob("checkpoint-*/model.safetensors")]:
        assert all(name.startswith(("distilbert.", "vocab_")) for name in load_file(file)), file
    model, tokenizer = AutoModelForMaskedLM.from_pretrained("run"), AutoTokenizer.from_pretrained("run")
    assert type(model).__name__ == "DistilBertForMaskedLM"
    assert "token_type_ids" not in tokenizer("good film")
    assert torch.isfinite(model(**tokenizer("good film", return_tensors="pt")).logits).all()


@pytest.mark.slow
def test_a_student_can_be_finetuned(command, run, toy_data):
    assert run(*command).code == 0
    settings = ["--epochs", "1", "--set", "training.precision=fp32", "--output", "tuned"]
    ended = run("finetune", "classify", "--model", "run", "--data", toy_data, *settings)
    assert ended.code == 0, ended.err


def test_a_dry_run_counts_no_operations_that_it_does_not_know(command, run):
    ended = run(*command, "--dry-run", "--json")
    assert ended.code == 0, ended.err
    estimate = json.loads(ended.out)
    assert estimate["peak_share"] is None
    assert estimate["tokens_per_second"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_bit_for_bit(command, zygote, tmp_path_factory, workers):
    fault = {"function": "transformers.trainer.Trainer.training_step", "call": 6}
    check_kill(zygote, tmp_path_factory.mktemp, [*command, "--workers", str(workers)], fault)


def test_a_layer_too_many_is_refused_before_text_is_read(command, run):
    ended = run(*command, "--set", "options.student_layers=9", "--limit", 50)
    assert ended.code == 2
    assert "the corpus was prepared" not in ended.err
    assert "the first teacher has 4 layers - number them from 0 to 3" in ended.last


def test_a_teacher_without_a_head_is_refused_in_one_line(command, run, tiny_model):
    ended = run(*command, "--model", tiny_model)
    assert ended.code == 4
    assert "the teacher has no head that predicts masked tokens" in ended.last
    assert f"bertkit pretrain mlm --model {tiny_model}" in ended.last
