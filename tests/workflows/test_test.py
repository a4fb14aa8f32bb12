"""Files of tests: rows from templates, files and the run itself, and what of them is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import write_csv
from tests.junit import read_junit

CASES = """
tests:
- name: one word decides
  template: "the {thing} was {word}"
  slots: {thing: [film, book, song], word: [good, great, lovely]}
  answer: good
  allowed: 0.2
- name: rows
  rows: [{text: a bad film, label: bad}, {text: a good film, label: good}]
  allowed: 0.5
- name: a file
  rows: new.csv
  allowed: 0.5
- change: synonyms
  words: {good: great, bad: awful}
  allowed: 0.2
- name: praise
  change: add
  text: superb superb superb
  rises: good
  allowed: 0.5
- {name: none, change: number}
"""


@pytest.fixture
def command(run, trained):
    Path("cases.yaml").write_text(CASES)
    write_csv(Path("new.csv"), [{"text": "this is great", "label": "good"}, {"text": "so dull", "label": "bad"}])
    return ("test", trained, "cases.yaml")


def test_rows_of_every_source_are_tested(run, command):
    ended = run(*command, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    results = {result["name"]: result for result in found["results"]}
    assert {name: (result["kind"], result["rows"]) for name, result in results.items() if "syn" not in name} == {
        "one word decides": ("answer", 9),
        "rows": ("answer", 2),
        "a file": ("answer", 2),
        "praise": ("direction", 60),
    }
    assert results["synonyms 4"]["kind"] == "invariance" and 0 < results["synonyms 4"]["rows"] < 60
    assert found["left_out"] == ["none"]
    assert [gate["outcome"] for gate in found["gates"]] == ["passed"] * 5 + ["skipped"]


def test_too_many_failures_end_with_the_code_of_gates(run, command):
    Path("cases.yaml").write_text('tests: [{name: wrong, rows: [{text: "good"}, {text: "bad"}], answer: bad}]')
    ended = run(*command, "--report", "t.xml")
    assert (ended.code, ended.last.startswith("error: a gate was not passed: answer, wrong: 1 of 2 rows")) == (8, True)
    assert "wrong: good: good, not bad" in ended.out
    assert list(read_junit("t.xml").values()) == ["failed", "passed"]
    assert run(*command, "--report", "t.md").code == 8
    assert Path("t.md").read_text().count("\n| ") == 2


def test_without_a_file_small_changes_are_told_and_not_judged(run, trained):
    ended = run("test", trained, "--limit", 5, "--report", "t.xml")
    assert "failed" not in read_junit("t.xml").values()
    assert (ended.code, "gate" in ended.out) == (0, False)
    assert "  rows that fail\n" in ended.out and "typo " in ended.out


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("tests: []", 2, "tests = [] is wrong"),
        ("tests: [{chage: typo}]", 2, "unknown key 'tests.0.chage'"),
        ("tests: [{change: typos}]", 2, "did you mean typo"),
        ("tests: [{rows: [{text: a, label: god}]}]", 3, "'god' is not one of the labels"),
        ("tests: [{rows: [{txt: a, label: good}]}]", 3, "no column is called 'txt'"),
        ("tests: [{rows: [{text: a}]}]", 3, "the row has no 'label'"),
        ("tests: [{rows: none.csv}]", 3, "none.csv"),
        ("tests: [{template: '{a}', answer: good}]", 2, "nothing fills the slot {a}"),
        ("tests: [{name: a, change: typo}, {name: a, change: number}]", 2, "two tests are called 'a'"),
        ("tests: [{change: add, text: x, rises: god}]", 2, "no probability of 'god' - did you mean good"),
        ("tests: [", 2, "not YAML"),
        ("", 2, "the file of tests is empty (cases.yaml) - copy the example in docs/test.md"),
        ("- a", 2, "a file of tests is a list of `key: value` lines (cases.yaml) - copy the example"),
        ("tests: &a []", 2, "anchors and aliases are not supported (cases.yaml:1)"),
        (None, 6, "no file of tests"),
    ],
)
def test_a_mistake_is_answered_in_one_line(run, command, text, code, message):
    Path("cases.yaml").unlink() if text is None else Path("cases.yaml").write_text(text)
    ended = run(*command, "--limit", 2)
    assert (ended.code, message in ended.last) == (code, True), ended.err


def test_no_rows_are_no_test(run, command):
    assert run(*command, "--limit", 0).code == 2
    assert run(*command, "--report", "t.txt").code == 2
