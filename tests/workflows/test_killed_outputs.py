"""Commands with outputs other than runs, killed before and between them: the same command then ends as an unbroken one.

Each command that writes is in one of these tables, so that a new one is asked for on the day it is added.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer

from bertkit.cli.main import app
from tests.conftest import toy_rows, write_csv

SEVERAL = {
    "check": ["classify", "--data", "data", "--fix", "copy"],
    "cluster": ["rows.csv", "--vectors", "rows.npy", "--clusters", "2", "--save", "topics", "-o", "out.csv"],
    "dedup": ["rows.csv", "--vectors", "rows.npy", "--threshold", "0.9", "-o", "out.csv", "--report", "report.csv"],
    "embed": ["rows.csv", "-o", "out.npy", "--precision", "fp32"],
    "eval": ["classify", "--data", "data", "--split", "train", "--on-overlap", "mark", "-o", "scores"],
    "map": ["rows.csv", "-o", "map.html", "--svg", "map.svg"],
    "pretrain tokenizer": ["--data", "demo", "--vocabulary-size", "300", "--limit", "400", "-o", "tokenizer"],
    "search build": ["rows.csv", "-o", "index", "--precision", "fp32"],
}
"""Commands that write several files, with arguments."""
STAGED = {"export", "package", "prune", "quantize"}
"""Commands that write one folder, in `bertkit.storage.outputs.create_folder_atomically`."""
RUNS = {"ablate", "distill", "finetune", "glue", "pretrain recipe", "rerun", "sweep"}
"""Commands that write runs; see test_resume.py."""
ONE_FILE = {
    *("attention heads", "attention show", "compare", "errors", "explain", "predict"),
    *("probe", "recipes guess", "runs table", "search passages", "search query", "similar", "test"),
}
MODELS = {"check", "embed", "map", "search build"}  # read one; the others have vectors, a run or text
WRITES = {"--output", "--save", "--fix", "--report", "--svg"}


def find_writing(command, name=()):
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            yield from find_writing(inner, (*name, part))
    elif WRITES & {option for parameter in command.params for option in parameter.opts}:
        yield " ".join(name)


def test_every_command_that_writes_is_in_a_table():
    assert set(find_writing(typer.main.get_command(app))) == {*SEVERAL, *STAGED, *RUNS, *ONE_FILE}


def contents(folder: Path) -> dict[str, bytes]:
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    files.pop("out.txt")
    return files


@pytest.mark.parametrize(
    "name", [case if case == "dedup" else pytest.param(case, marks=pytest.mark.slow) for case in SEVERAL]
)
def test_a_command_that_is_killed_between_its_outputs_ends_as_one_that_was_not(
    name, tiny_model, trained, tmp_path, zygote
):
    def begin(folder):
        rows = [{"text": row["text"]} for row in toy_rows(40, seed=3)]
        folder.mkdir()
        write_csv(folder / "rows.csv", rows)
        np.save(folder / "rows.npy", np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32))
        for split, seed in (("train", 1), ("validation", 2)):
            write_csv(folder / "data" / f"{split}.csv", toy_rows(40, seed=seed))
        return folder

    model = {"eval": ["--model", str(trained)], **{reader: ["--model", str(tiny_model)] for reader in MODELS}}
    command = [*name.split(), *SEVERAL[name], *model.get(name, [])]
    whole = begin(tmp_path / "whole")
    assert zygote.run(whole, command)[0] == 0
    kills = 0
    for function in ("os.replace", "os.rename"):
        for call in itertools.count(1):
            broken = begin(tmp_path / "broken")
            is_killed = zygote.run(broken, command, {"function": function, "call": call, "when": "after"})[0] == -9
            if is_killed:
                kills += 1
                code, text = zygote.run(broken, command)
                assert code == 0 or (code == 2 and "exists" in text), text  # then it was complete
            assert contents(broken) == contents(whole), (function, call)
            shutil.rmtree(broken)
            if not is_killed:
                break
    assert kills
