"""What `bertkit compare` prints and writes."""

from __future__ import annotations

import json
import re

from bertkit.cli.commands.compare import describe_power
from bertkit.metrics.paired import Difference
from bertkit.workflows.compare import Comparison
from tests.evaluation.stored_runs import make_rows, make_run, predict
from tests.junit import read_junit

ROWS = make_rows(40)


def test_two_runs_are_a_table_a_page_and_json(run, tmp_path):
    work = tmp_path / "work"
    make_run(work / "runs" / "a", predict(ROWS, set(range(12))))
    make_run(work / "runs" / "b", predict(ROWS, {12}), seed=2)
    (work / "runs" / "a" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    ended = run("compare", "runs/a", "runs/b", "--show", 1, "-o", "page.html")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("mine, validation: 40 rows; baseline: a\n  One seed per model: ")
    assert "which may reverse the result" in ended.out and "\nb - a\n  scores\n" in ended.out
    assert re.search(r"    accuracy +0\.7000 +0\.9750 +\+0\.2750 +0\.\d+ to 0\.\d+ +<?0\.0\d+ +0\.003\n", ended.out)
    assert "  answered differently: 13; by accuracy, b wins 12 and loses 1\n" in ended.out
    assert "  lost by b\n    12: word" in ended.out
    assert "    training.seed  1  2\n" in ended.out
    page = (work / "page.html").read_text()
    assert "b wins 12 and loses 1" in page
    assert "Training loss" in page
    found = json.loads(run("compare", "runs/a", "runs/b", "--json").out)
    assert found["differences"]["b"]["accuracy"]["difference"] == 0.275
    assert [row["id"] for row in found["changes"]["b"]["lost_rows"]] == ["12"]


def test_a_mistake_is_answered_in_one_line(run, tmp_path):
    make_run(tmp_path / "work" / "a", predict(ROWS, set()))
    make_run(tmp_path / "work" / "b", predict(ROWS[1:], set()))
    for arguments, code, message in (
        (("a",), 2, "one run cannot be compared - name two or more"),
        (("a", "b"), 3, "39 rows, and a has 40 (b/predictions.jsonl)"),
        (("a", "none"), 2, "neither a run folder nor stored predictions (none)"),
        (("a", "b", "-o", "page.pdf"), 2, "the page is HTML (page.pdf) - name it page.html"),
    ):
        ended = run("compare", *arguments)
        assert (ended.code, ended.last[: len(message) + 7]) == (code, f"error: {message}")


def test_a_gate_ends_with_its_own_code_and_a_report(run, tmp_path):
    work = tmp_path / "work"
    rows = make_rows(120)
    good = {number for number, row in enumerate(rows) if row["label"] == "good"}
    make_run(work / "old", predict(rows, set(range(0, 120, 12))))
    make_run(work / "new", predict(rows, set(range(0, 120, 12)) | set(sorted(good)[:30])))
    assert run("compare", "old", "new").code == 0
    ended = run("compare", "old", "new", "--fail-if-worse", "--group-by", "label", "--report", "r.xml", "--json")
    assert ended.code == 8 and ended.last.startswith("error: 2 gates were not passed: new, accuracy: ")
    found = json.loads(ended.out)
    assert found["error"]["code"] == 8
    outcomes = {(case["group"], case["name"]): case["outcome"] for case in found["gates"]}
    assert outcomes == {
        ("new", "accuracy"): "failed",
        ("new, label", "good: accuracy"): "failed",
        ("new, label", "bad: accuracy"): "passed",
    }
    assert sorted(name for _, name in read_junit(work / "r.xml")) == [
        "accuracy",
        "bad: accuracy",
        "good: accuracy",
        "matthews_correlation",
    ]
    assert run("compare", "new", "old", "--fail-if-worse", "--margin", ".01", "--report", "r.md").code == 0
    assert (
        "gate failed: new, matthews_correlation"
        in run(*("compare", "old", "new", "--fail-if-worse", "--metric", "matthews_correlation")).out
    )


def test_a_gate_is_asked_for_in_right_words(run, tmp_path):
    for name in "ab":
        make_run(tmp_path / "work" / name, predict(ROWS, set()))
    (tmp_path / "work" / "mine.md").write_text("# Notes")
    for arguments, code, message in (
        (("--margin", ".01"), 2, "--margin without --fail-if-worse"),
        (("--if-inconclusive", "pass"), 2, "--if-inconclusive without --fail-if-worse"),
        (("--fail-if-worse", "--metric", "acuracy"), 2, "did you mean accuracy"),
        (("--report", "mine.md"), 2, "the file exists and is not a report of bertkit (mine.md) - choose another"),
        (("--report", "r.txt"), 2, "a report is JUnit or Markdown"),
    ):
        ended = run("compare", "a", "b", *arguments)
        assert (ended.code, message in ended.last) == (code, True), ended.err


def test_power_is_told_in_a_sentence():
    compared = Comparison("r", "t", "s", 100, 100, "f1", [], {}, {}, [], [], {})
    difference = Difference(0.5, 0.6, 0.1, (0.0, 0.2), 0.05, "permutation", detectable=0.14, rows_needed=196)
    assert describe_power(difference, compared) == (
        "100 rows detect a difference of 0.1400 in f1 (power .8); 0.1000 needs 196 rows"
    )
    seeds = Difference(0.5, 0.6, 0.1, (0.0, 0.2), 0.05, "t over seeds and rows", detectable=0.14, seeds_needed=9)
    assert describe_power(seeds, compared).endswith("; 0.1000 needs 9 seeds; more rows are not enough")
    nothing = Difference(0.5, 0.5, 0.0, None, 1.0, "permutation")
    assert describe_power(nothing, compared).startswith("power: unknown")
