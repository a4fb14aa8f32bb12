"""Distillation through the command line: what is learned, kept, resumed, compared and refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import DEMO_ROWS, LEARN, distill, toy_rows, write_csv
from tests.kills import COMPARE, TRAINING_STEP, check_equal, read_lines, slow_unless

pytestmark = pytest.mark.usefixtures("timed_once")


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


@pytest.mark.slow
def test_a_student_learns_from_its_teacher_what_gold_does_not_say(run, trained, tiny_model, wrong_data):
    options = ("--model", tiny_model, "--epochs", 4, "--output", "student")
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
    logged = [entry for entry in read_lines(Path("runs/classify-distilled/metrics.jsonl")) if "loss" in entry]
    assert logged
    for entry in logged:
        assert entry["loss"] == pytest.approx(0.7 * entry["loss_gold"] + 0.3 * entry["loss_soft"], abs=1e-4)


@pytest.fixture(scope="module")
def narrow_demo(tmp_path_factory) -> Path:
    """A student of the demo model's words that is narrower than the demo model, and without dropout."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from bertkit.storage.hub import find_model

    folder = tmp_path_factory.mktemp("narrow") / "demo"
    config = BertConfig.from_pretrained(find_model("demo"))
    config.update({"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2})
    torch.manual_seed(1)
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(find_model("demo")).save_pretrained(folder)
    return folder


SLOW_FAMILIES = ("ner", "squad2", "wsd", "choose", "regress", "rerank")
HIDDEN = ["--set", "distillation.hidden=uniform"]
SCORES = ["--set", "distillation.attention_scores=uniform", "--set", "distillation.embeddings_weight=1"]
STUDENTS = {
    "soft": ["--student-layers", "0,2"],
    "matched": ["--student-layers", "2", *HIDDEN, "--set", "distillation.attention={0: 1}"],
    "projected": ["--model", "narrow", *HIDDEN, *SCORES],
}


@pytest.fixture(scope="module")
def demo_teacher(zygote, tmp_path_factory) -> str:
    """The demo model, fine-tuned for a moment."""
    folder = tmp_path_factory.mktemp("teacher")
    code, text = zygote.run(
        folder, ["finetune", "classify", "--model", "demo", *DEMO_ROWS, "--epochs", "1", "--output", "t"]
    )
    assert code == 0, text
    return str(folder / "t")


@pytest.mark.parametrize("student", slow_unless([], STUDENTS))
def test_a_kill_changes_nothing(zygote, demo_teacher, narrow_demo, tmp_path_factory, student):
    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    options = [str(narrow_demo) if word == "narrow" else word for word in STUDENTS[student]]
    arguments = [
        "distill",
        "classify",
        "--teacher",
        demo_teacher,
        *options,
        *DEMO_ROWS,
        "--epochs",
        "2",
        "--output",
        "run",
    ]
    arguments += ["--set", "training.evaluate_every=3", "--set", "training.log_every=2"]
    code, text = zygote.run(whole, arguments)
    assert code == 0, text
    assert zygote.run(broken, arguments, {"function": TRAINING_STEP, "call": 8})[0] == -9
    code, text = zygote.run(broken, arguments)
    assert code == 0, text
    assert "resuming run" in text
    check_equal(broken / "run", whole / "run")
    assert not any("projections" in name for name in load_file(broken / "run" / "model.safetensors"))


@pytest.mark.slow
def test_a_kill_before_the_comparison_leaves_only_that_to_do(zygote, demo_teacher, tmp_path):
    arguments = ["distill", "classify", "--teacher", demo_teacher, "--student-layers", "1", *DEMO_ROWS, "--epochs", "1"]
    arguments += ["--output", "run"]
    assert zygote.run(tmp_path, arguments, {"function": COMPARE})[0] == -9
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    code, text = zygote.run(tmp_path, arguments)
    assert code == 0, text
    assert "resuming run" in text
    assert "student run" in text
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == log  # no step was trained again


@pytest.mark.slow
def test_report_and_card_hold_the_comparison_and_a_finished_run_prints_it_again(zygote, demo_teacher, tmp_path):
    arguments = ["distill", "classify", "--teacher", demo_teacher, "--student-layers", "1", *DEMO_ROWS, "--epochs", "1"]
    arguments += ["--output", "run"]
    code, text = zygote.run(tmp_path, arguments)
    assert code == 0, text
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (result,) = record["results"]
    assert [model["role"] for model in record["compared_models"]] == ["teacher", "student"]
    teacher, student = record["compared_models"]
    assert student["scores"] == result["scores"]
    assert student["disk_bytes"] == (tmp_path / "run" / "model.safetensors").stat().st_size
    for metric, difference in teacher["difference"].items():
        assert difference == pytest.approx(student["scores"][metric] - teacher["scores"][metric])
    report, card = ((tmp_path / "run" / name).read_text() for name in ("report.html", "README.md"))
    for model in record["compared_models"]:
        assert f"| {model['role']} {Path(model['model']).name} | {model['parameters']:,} |" in card
        assert f"{model['role']} {Path(model['model']).name}</th><td>{model['parameters']:,}</td>" in report
    assert "baseline" in text.partition("student - teacher")[2]
    again = zygote.run(tmp_path, arguments)[1]
    assert again.partition("size and speed")[2] == text.partition("size and speed")[2]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["classify", *SLOW_FAMILIES])
def test_every_family_is_distilled(run, recipe):
    assert run("finetune", recipe, "--model", "demo", *DEMO_ROWS, "--epochs", 1, "--output", "t").code == 0
    options = ("--student-layers", "0,2", "--epochs", 1, "--output", "s", *HIDDEN, "--soft-weight", 1)
    ended = run("distill", recipe, "--teacher", "t", *DEMO_ROWS, *options)
    assert ended.code == 0, ended.err
    logged = [entry for entry in read_lines(Path("s/metrics.jsonl")) if "loss" in entry]
    assert all(set(entry) >= {"loss_gold", "loss_soft", "loss_hidden"} for entry in logged)
    assert all(entry["loss"] == pytest.approx(entry["loss_soft"] + entry["loss_hidden"], abs=1e-3) for entry in logged)


@pytest.mark.slow
def test_several_labels_at_once_are_distilled(run, tiny_model, tmp_path):
    folder = tmp_path / "several"
    folder.mkdir()
    rows = [
        {**row, "label": f"{row['label']}|short" if len(row["text"]) < 30 else row["label"]} for row in toy_rows(80, 3)
    ]
    write_csv(folder / "train.csv", rows[:60])
    write_csv(folder / "validation.csv", rows[60:])
    several = ("--data", folder, *LEARN, "--epochs", 2, "--set", "options.multi_label=true")
    assert run("finetune", "classify", "--model", tiny_model, *several, "--output", "t").code == 0
    ended = run("distill", "classify", "--teacher", "t", "--model", tiny_model, *several, "--output", "s")
    assert ended.code == 0, ended.err


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(run, zygote, trained, still_model, toy_data):
    matched = ("--model", still_model, "--epochs", 1, "--set", "training.log_every=1", *HIDDEN)
    assert distill(run, trained, toy_data, *matched, "--output", "one").code == 0
    arguments = ["distill", "classify", "--teacher", trained, "--data", toy_data, *LEARN, *matched, "--output", "two"]
    codes, out, err = zygote.launch(Path.cwd(), [*arguments, "--json"])
    assert codes == [0, 0], err
    assert [model["role"] for model in json.loads(out)["compared_models"]] == ["teacher", "student"]
    for one, two in zip(*(read_lines(Path(name) / "metrics.jsonl") for name in ("one", "two")), strict=True):
        assert one == pytest.approx(two, abs=1e-4)
