"""Predictions and scores by several processes and by shards: the files of one process, also after a kill."""

from __future__ import annotations

import csv
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from bertkit.evaluation import rows_to_predict
from bertkit.hardware.launch import Launch
from bertkit.storage import disk
from bertkit.workflows import predict as workflow
from tests.conftest import toy_rows, write_csv


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture
def commands(trained, tmp_path):
    """The arguments of each command, whose rows fill several parts, and what it writes."""
    rows = toy_rows(9000, seed=7)
    write_csv(tmp_path / "rows.csv", [{"text": row["text"], "when": number} for number, row in enumerate(rows)])
    write_csv(tmp_path / "gold.csv", rows)
    return {
        "predict": ["predict", str(trained), "rows.csv", "-o", "out.csv"],
        "eval": ["eval", str(trained), "--data", "gold.csv", "--on-overlap", "mark", "-o", "scores"],
    }


WRITE_PART = "bertkit.workflows.predict.write_part"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["predict", "eval"])
def test_processes_and_shards_write_what_one_does(name, commands, tmp_path, zygote):
    arguments = commands[name]
    output = tmp_path / arguments[-1]
    code, out = zygote.run(tmp_path, arguments)
    assert code == 0, out
    alone = contents(output)
    shutil.rmtree(output) if output.is_dir() else output.unlink()

    codes, _, err = zygote.launch(tmp_path, arguments, 2)
    assert codes == [0, 0], err
    assert contents(output) == alone
    assert not list(tmp_path.rglob(".*.parts"))
    if name == "eval":  # it has no shards
        return
    output.unlink()
    for shard in ("2/2", "1/2"):
        code, out = zygote.run(tmp_path, [*arguments, "--shard", shard])
        assert code == 0, out
    assert contents(output) == alone
    assert not list(tmp_path.rglob(".*.parts"))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_parts_of_a_killed_shard_are_done_by_the_same_command(when, commands, tmp_path, zygote):
    arguments = commands["predict"]
    output = tmp_path / arguments[-1]
    code, out = zygote.run(tmp_path, arguments)
    assert code == 0, out
    alone = contents(output)
    output.unlink()

    assert zygote.run(tmp_path, [*arguments, "--shard", "2/2"])[0] == 0
    killed = {"function": WRITE_PART, "when": when}
    assert zygote.run(tmp_path, [*arguments, "--shard", "1/2"], killed)[0] == -9
    parts = {file.name: file.stat().st_mtime_ns for file in tmp_path.rglob("*.part")}
    assert len(parts) == (2 if when == "after" else 1)
    code, out = zygote.run(tmp_path, [*arguments, "--shard", "1/2"])
    assert code == 0, out
    assert contents(output) == alone


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(rows_to_predict, "CHUNK_ROWS", 3)
    monkeypatch.setattr(disk, "IN_MEMORY", 3)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_shards_write_every_type_of_value_as_one_process_does(ending, run, trained, small_chunks):
    rows = toy_rows(8, seed=1)
    columns = {
        "text": [row["text"] for row in rows],
        "day": [date(2024, 1, 1), None] * 4,
        "time": [datetime(2024, 1, 1, 12, tzinfo=UTC)] * 8,
        "price": [Decimal("1.50")] * 8,
        "raw": [b"\x00\xff"] * 8,
        "number": [1.5, float("nan")] * 4,
        "list": [[1, 2]] * 8,
    }
    parquet.write_table(pyarrow.table(columns), "rows.parquet")
    assert run("predict", trained, "rows.parquet", "-o", f"one.{ending}").code == 0
    for shard in ("1/3", "3/3", "2/3"):
        ended = run("predict", trained, "rows.parquet", "-o", f"out.{ending}", "--shard", shard)
        assert ended.code == 0, ended.err
        assert ended.out == (f"out.{ending}: 8 rows\n" if shard == "2/3" else "")
    assert Path(f"out.{ending}").read_bytes() == Path(f"one.{ending}").read_bytes()


def test_parts_that_were_rounded_differently_are_refused(run, trained, small_chunks):
    write_csv(Path("rows.csv"), [{"text": row["text"]} for row in toy_rows(8, seed=1)])
    shards = ["predict", trained, "rows.csv", "-o", "out.csv"]
    assert run(*shards, "--shard", "1/2", "--digits", 2).code == 0
    ended = run(*shards, "--shard", "2/2")
    assert ended.code == 2
    assert "--digits: 2 there, 4 requested" in ended.last


def test_a_character_that_cannot_be_encoded_costs_no_part(run, trained, small_chunks, monkeypatch):
    write_csv(Path("rows.csv"), [{"text": f"{row['text']} \u03b1"} for row in toy_rows(8, seed=1)])
    shards = ["predict", trained, "rows.csv", "-o", "out.csv"]
    assert run(*shards, "--shard", "1/2").code == 0
    ended = run(*shards, "--shard", "2/2", "--encoding", "latin-1")
    assert (ended.code, "--encoding utf-8" in ended.last) == (3, True)
    monkeypatch.setattr(workflow, "answer_rows", lambda *_: pytest.fail("rows are predicted again"))
    assert run(*shards, "--shard", "2/2", "--encoding", "utf-8").code == 0
    assert not list(Path().glob(".*.parts"))


def test_rows_that_change_meanwhile_are_refused(run, trained, small_chunks, monkeypatch):
    write_csv(Path("rows.csv"), rows := [{"text": row["text"]} for row in toy_rows(8, seed=1)])
    joined = workflow.OutputShards.joined

    def change(self, files):
        write_csv(Path("rows.csv"), [*rows[:7], {"text": "another"}])
        return joined(self, files)

    monkeypatch.setattr(workflow.OutputShards, "joined", change)
    assert run("predict", trained, "rows.csv", "-o", "out.csv", "--shard", "1/2").code == 0
    ended = run("predict", trained, "rows.csv", "-o", "out.csv", "--shard", "2/2")
    assert ended.code == 0 and not Path("out.csv").exists()  # its last part is of other rows, so one is missing
    ended = run("predict", trained, "rows.csv", "-o", "out.csv", "--shard", "1/2")
    assert ended.code == 0, ended.err
    with Path("out.csv").open(newline="") as stream:
        assert [row["text"] for row in csv.DictReader(stream)][-1] == "another"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "RUN", "--text", "a", "-o", "out.csv", "--shard", "1/2"], "without a file to predict"),
        (["predict", "RUN", "-", "-o", "out.csv", "--shard", "1/2"], "without a file to predict"),
        (["predict", "RUN", "rows.csv", "--shard", "1/2"], "--output is missing with several processes"),
        (["predict", "RUN", "rows.csv", "-o", "out.csv", "--shard", "3/2"], "--shard 3/2"),
        (["embed", "rows.csv", "--model", "RUN", "--shard", "1/2"], "--output is missing with several processes"),
    ],
)
def test_mistakes_end_in_one_line(arguments, message, run, trained):
    write_csv(Path("rows.csv"), [{"text": "a"}])
    ended = run(*(trained if argument == "RUN" else argument for argument in arguments))
    assert ended.code == 2 and message in ended.last, ended.err
    assert list(map(str, Path().iterdir())) == ["rows.csv"]
    assert Launch.join() == Launch(0, 1)  # the share ends with the command
