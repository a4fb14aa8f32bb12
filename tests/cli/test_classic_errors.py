"""The classic errors of docs/doctor.md: the command of a row, run on what it is about, says what stands there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from bertkit.storage.hub import find_model
from tests.conftest import toy_rows, write_csv, write_jsonl
from tests.kills import slow_unless

SECTION = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8").partition("\n## Errors ans")[2]
ROWS = [line.strip("| \n").split(" | ") for line in SECTION.splitlines() if line.startswith("| ")][1:]
"""What goes wrong, what bertkit does, and the command."""


def write_data(folder: str, train: list[dict], validation: list[dict]) -> None:
    write_csv(Path(folder, "train.csv"), train)
    write_csv(Path(folder, "validation.csv"), validation)


def change_json(file: Path, **values) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture
def files(run, trained):
    """Make what the commands of the table name, in the empty folder of `run`."""
    splits = [
        [{"id": f"{split}-{n}", **row} for n, row in enumerate(toy_rows(count, seed))]
        for split, count, seed in (("t", 60, 5), ("v", 30, 6))
    ]
    train, validation = splits
    write_data("data", train, validation)
    write_data("long", *([{**row, "text": 90 * f"{row['text']} "} for row in rows] for rows in splits))
    write_data("one", *([{**row, "label": "good"} for row in rows] for rows in splits))
    write_data("numbers", *([{**row, "label": int(row["label"] == "good")} for row in rows] for rows in splits))
    write_data(
        "three", *([{**row, "label": "fine"} if n % 3 else row for n, row in enumerate(rows)] for rows in splits)
    )
    write_data("leak", train, [*validation[:20], *train[:10]])
    write_csv(Path("rows.csv"), [{"text": row["text"]} for row in validation])
    write_jsonl(Path("tags.jsonl"), [{"tokens": ["EU", "rejects"], "tags": ["B-ORG"]}])
    shutil.copytree(trained, "runs/mine")
    shutil.copytree(trained, "foreign", ignore=lambda _, names: {name for name in names if name not in MODEL_FILES})
    change_json(
        Path("foreign/config.json"), id2label={0: "LABEL_0", 1: "LABEL_1"}, label2id={"LABEL_0": 0, "LABEL_1": 1}
    )
    shutil.copytree(find_model("demo"), "mixed")
    model = json.loads(Path("mixed/tokenizer.json").read_text())["model"]
    vocabulary = model["vocab"] | {f"new{n}": len(model["vocab"]) + n for n in range(50)}
    change_json(Path("mixed/tokenizer.json"), model={**model, "vocab": vocabulary})


MODEL_FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def run_out_of_memory(monkeypatch):
    def fail(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("torch.optim.AdamW.step", fail)


def test_the_table_has_a_row_for_each_error_and_not_more_than_one_can_read():
    assert 8 <= len(ROWS) <= 12
    assert {len(row) for row in ROWS} == {3}


QUICK = [row for row in ROWS if "longer than" not in row[0]]  # which trains on long texts, as test_finetune.py does


@pytest.mark.parametrize("row", slow_unless(QUICK, ROWS), ids=lambda row: row[0][:40])
def test_the_command_of_a_row_says_what_stands_there(row, run, files, monkeypatch):
    what, answer, command = row
    name, *arguments = shlex.split(command.strip("`"))
    quotes = [quote for quote in re.findall("`([^`]+)`", answer) if " " in quote and not quote.startswith("bertkit ")]
    assert name == "bertkit"
    if what == "out of memory":
        run_out_of_memory(monkeypatch)
    ended = run(*arguments)
    if "training mode" in what:
        assert json.loads(Path("runs/mine/config.json").read_text())["hidden_dropout_prob"] > 0
        assert (ended.code, ended.out) == (0, run(*arguments).out)
        assert "probabilities" in ended.out
        return
    said = " ".join((ended.out + ended.err).split())
    assert quotes
    for quote in quotes:
        parts = [part.strip() for part in quote.split("...")]
        assert re.search(".*".join(map(re.escape, parts)), said), (quote, said)
    assert "Traceback" not in said
    assert (ended.code == 6) == (what == "out of memory")
