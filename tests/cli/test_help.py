"""Help fits the terminal, whatever its width."""

from __future__ import annotations

import pytest
import typer

from bertkit.cli.main import app
from bertkit.hardware import threads


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
    assert "Print the versions of bertkit and of its main dependencies." in text


def test_arguments_have_no_braces_and_options_that_a_recipe_sets_say_so(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = help_of("finetune")
    assert text.startswith("Usage: bertkit finetune [OPTIONS] RECIPE\n")
    assert "{" not in text
    for option in ("--epochs", "--learning-rate", "--batch-size", "--max-length", "--seed", "--model", "--data"):
        described = " ".join(text.partition(f"  {option} ")[2].split("\n  -")[0].split())
        assert described.endswith("[default: (the recipe's)]"), option
    assert "[default: 20]" in help_of("bench")


def test_a_command_that_computes_takes_a_number_of_threads(run, monkeypatch):
    monkeypatch.setattr(threads, "_PROCESS", threads._Process())
    assert run("tokenize", "a text", "--model", "demo", "--threads", 3).code == 0
    assert threads.fitting_threads() == (3, "--threads")
    assert run("tokenize", "a text", "--model", "demo").code == 0
    assert threads.fitting_threads().why == "OMP_NUM_THREADS"
    refused = run("tokenize", "a text", "--threads", 0)
    assert refused.code == 2 and "--threads" in refused.last
    assert run("version", "--threads", 2).code == 2
