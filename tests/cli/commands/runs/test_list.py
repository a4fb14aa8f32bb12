"""What `bertkit runs list` prints."""

from __future__ import annotations

import json

from tests.evaluation.stored_runs import make_run


def test_runs_are_a_table_and_json(run, tmp_path):
    work = tmp_path / "work"
    make_run(work / "runs" / "low", [], scores={"accuracy": 0.5})
    make_run(work / "runs" / "high", [], scores={"accuracy": 0.75})
    for seed, score in ((1, 0.25), (2, 0.5)):
        make_run(work / "runs" / "spread" / f"seed-{seed}", [], scores={"accuracy": score})
    (work / "runs" / "bad").mkdir()
    (work / "runs" / "bad" / "run.json").write_text("{")
    ended = run("runs", "list", "--sort", "score")
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines()[2:6]]
    assert [row[0] for row in rows] == ["high", "low", "spread", "bad"]
    assert rows[0][1:6] == ["finished", "mine", "tiny", "accuracy", "0.7500"]
    assert rows[2][4:7] == ["mean", "accuracy", "0.3750"]
    assert ended.out.splitlines()[6].startswith("  runs/bad: ")
    found = json.loads(run("runs", "list", "--json").out)
    assert [each["folder"] for each in found["runs"]] == ["runs/bad", "runs/high", "runs/low", "runs/spread"]
    assert found["runs"][1]["seconds"] == 90


def test_a_folder_without_runs_is_said(run, tmp_path):
    (tmp_path / "work" / "runs").mkdir(parents=True)
    assert run("runs", "list").out == "runs: no runs\n"
    ended = run("runs", "list", "nowhere")
    assert (ended.code, ended.last) == (2, "error: no such folder (nowhere) - name the folder that holds the runs")
