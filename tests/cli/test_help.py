"""Help fits the terminal, whatever its width."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from bertkit.cli.main import app
from bertkit.hardware import device, process
from tests.conftest import finetune


def help_of(*path: str) -> str:
    command = typer.main.get_command(app)
    context = command.make_context("bertkit", [], resilient_parsing=True)
    for name in path:
        command = command.get_command(context, name)
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    return command.get_help(context)


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("path", [(), ("finetune",), ("pretrain",), ("pretrain", "tokenizer")], ids="-".join)
def test_help_is_as_wide_as_the_terminal_up_to_100_columns(monkeypatch, columns, path):
    monkeypatch.setenv("COLUMNS", str(columns))
    width = max(map(len, help_of(*path).splitlines()))
    assert width <= min(columns, 100)
    assert width > min(columns, 100) - 20 or columns == 120


def test_summaries_are_whole_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = " ".join(help_of().split())
    assert "Pretrain an encoder on text, or train a tokenizer for it." in text
    assert "List published encoders and their uses." in text


def test_arguments_have_no_braces_and_options_that_a_recipe_sets_say_so(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = help_of("finetune")
    assert text.startswith("Usage: bertkit finetune [OPTIONS] RECIPE\n")
    assert "{" not in text
    for option in ("--epochs", "--learning-rate", "--batch-size", "--max-length", "--seed", "--model", "--data"):
        described = " ".join(text.partition(f"  {option} ")[2].split("\n  -")[0].split())
        assert described.endswith("[default: (from the recipe)]"), option
    assert "[default: 20]" in help_of("bench")


def test_a_command_that_computes_takes_a_number_of_threads(run, monkeypatch):
    monkeypatch.setattr(process, "_PROCESS", process._Process())
    assert run("tokenize", "a text", "--model", "demo", "--threads", 3).code == 0
    assert process.available_threads() == (3, "--threads")
    assert run("tokenize", "a text", "--model", "demo").code == 0
    assert process.available_threads().reason == "OMP_NUM_THREADS"
    refused = run("tokenize", "a text", "--threads", 0)
    assert refused.code == 2 and "--threads" in refused.last
    assert run("encoders", "--threads", 2).code == 2


def test_a_command_that_computes_takes_a_device(run, monkeypatch, tiny_model, toy_data):
    """The run is the same one on whatever device, so the option is in the record's machine alone."""
    import torch

    monkeypatch.setattr(device, "_PROCESS", device._Process())
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu"))
    monkeypatch.setattr(torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda self: None)
    trained = finetune(run, tiny_model, toy_data, "--epochs", 1, "--device", "cpu")
    assert trained.code == 0
    record = json.loads(Path("runs/classify/run.json").read_text())
    assert record["machine"]["device"] == "cpu" and "xpu" not in str(record)
    assert "device" not in str(record["identity"])
    assert "already finished" in finetune(run, tiny_model, toy_data, "--epochs", 1).err  # though another is found now
    refused = run("fill-mask", "The [MASK] sleeps", "--model", "demo", "--device", "mps")
    assert refused.code == 5
    assert refused.last.startswith(
        "error: --device mps: not available, only xpu and cpu - install a build of torch for it"
    )
    refused = run("fill-mask", "The [MASK] sleeps", "--model", "demo", "--device", "cuda:1")
    assert refused.code == 2 and "CUDA_VISIBLE_DEVICES chooses" in refused.last
    assert run("encoders", "--device", "cpu").code == 2


def test_a_device_that_is_missing_is_noticed_before_anything_is_read_or_moved(run, monkeypatch, tiny_model, toy_data):
    import torch

    monkeypatch.setattr(device, "_PROCESS", device._Process())
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    assert finetune(run, tiny_model, toy_data, "--epochs", 1).code == 0
    before = Path("runs/classify/run.json").read_bytes()
    (toy_data / "train.csv").write_text("no such columns\n1\n")
    refused = finetune(run, tiny_model, toy_data, "--epochs", 1, "--restart", "--device", "mps")
    assert refused.code == 5 and refused.last.startswith("error: --device mps: not available")
    assert [path.name for path in Path("runs").iterdir()] == ["classify"]
    assert Path("runs/classify/run.json").read_bytes() == before
    refused = run(
        "pretrain", "mlm", "--data", "missing.txt", "--tokenizer", "demo", "--size", "tiny", "--device", "mps"
    )
    assert refused.code == 5 and "mps" in refused.last
