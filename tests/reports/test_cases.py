"""Cases as JUnit and as the summary of a pull request."""

from __future__ import annotations

import xml.etree.ElementTree as tree

import pytest

from bertkit.errors import ResourceError, UsageError
from bertkit.reports.cases import Case, check_report, failed_gates_error, write_cases
from tests.junit import read_junit

CASES = [
    Case("validation", "accuracy", "passed", "0.9 is at least 0.8"),
    Case("validation", "f1 <macro>", "failed", "0.1 | below\x00 0.2"),
    Case("test", "ece", "skipped", "no probabilities"),
]


def test_junit_is_read_by_a_parser_with_the_attributes_of_the_schema(tmp_path):
    write_cases(tmp_path / "r.xml", "cola & co", CASES)
    assert read_junit(tmp_path / "r.xml") == {(case.group, case.name): case.outcome for case in CASES}
    root = tree.parse(tmp_path / "r.xml").getroot()
    assert (root.tag, root.attrib) == (
        "testsuites",
        {"name": "cola & co", "tests": "3", "failures": "1", "errors": "0", "time": "0"},
    )
    suites = {suite.attrib["name"]: suite for suite in root}
    assert [suite.tag for suite in root] == ["testsuite", "testsuite"]
    cases = suites["validation"].findall("testcase")
    assert [case.attrib["name"] for case in cases] == ["accuracy", "f1 <macro>"]
    assert all(case.attrib.keys() >= {"classname", "name", "time"} for case in cases)
    assert cases[0].find("system-out").text == "0.9 is at least 0.8"
    assert cases[1].find("failure").attrib["message"] == "0.1 | below\ufffd 0.2"
    assert suites["test"].find("testcase/skipped") is not None


def test_no_two_cases_of_a_suite_have_one_name(tmp_path):
    write_cases(tmp_path / "r.xml", "t", CASES * 3)
    names = [name for _, name in read_junit(tmp_path / "r.xml")]
    assert names.count("accuracy") == names.count("accuracy (2)") == names.count("accuracy (3)") == 1
    write_cases(tmp_path / "r.xml", "t", [])
    assert read_junit(tmp_path / "r.xml") == {}


def test_only_a_report_is_overwritten(tmp_path):
    for name in ("r.xml", "r.md"):
        file = tmp_path / name
        file.write_text("mine")
        with pytest.raises(UsageError, match="is not a report of bertkit"):
            check_report(file)
        assert file.read_text() == "mine"
        file.unlink()
        write_cases(file, "t", CASES)
        assert check_report(file) == file


def test_a_summary_has_what_failed_first_and_escapes_cells(tmp_path):
    write_cases(tmp_path / "r.md", "cola | co", CASES)
    lines = (tmp_path / "r.md").read_text().split("\n")
    assert lines[1].endswith("cola \\| co")
    assert "1 passed, 1 failed, 1 skipped" in lines
    rows = [line for line in lines if line.startswith("| ") and "case" not in line]
    assert "f1 &lt;macro>" in rows[0] and "0.1 \\| below" in rows[0]
    write_cases(tmp_path / "r.md", "many", CASES * 40)
    assert "70 more are not shown." in (tmp_path / "r.md").read_text()


def test_a_report_has_one_of_two_endings_and_a_folder(tmp_path):
    assert check_report(None) is None
    assert check_report(tmp_path / "r.XML") == tmp_path / "r.XML"
    with pytest.raises(UsageError, match=r"name it r\.xml or r\.md"):
        check_report(tmp_path / "r.json")
    with pytest.raises(ResourceError, match="no such folder"):
        check_report(tmp_path / "none" / "r.xml")


def test_the_error_names_the_first_that_failed():
    assert failed_gates_error([CASES[0], CASES[2]]) is None
    error = failed_gates_error([CASES[1]] * 5)
    assert error.exit_code == 8
    assert str(error).startswith("5 gates were not passed: validation, f1 <macro>: 0.1")
    assert str(error).endswith("and 2 more")
