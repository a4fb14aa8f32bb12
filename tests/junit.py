"""JUnit as Jenkins and GitLab read it: the rules of its common schema, checked element by element.

The schema is https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as tree
from pathlib import Path

NUMBERS = {"tests", "failures", "errors", "skipped", "disabled", "assertions"}
REQUIRED = {"testsuite": {"name", "tests"}, "testcase": {"name", "classname"}, "property": {"name", "value"}}
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors", "disabled"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "disabled", "time", "timestamp", "hostname", "id"},
    "testcase": {"name", "classname", "time", "assertions", "status"},
    "property": {"name", "value"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message", "type"},
}
CHILDREN = {  # in this order
    "testsuites": "(testsuite )*",
    "testsuite": "(properties )?(testcase )*(system-out )?(system-err )?",
    "testcase": "(skipped )?(error )*(failure )*(system-out )*(system-err )*",
    "properties": "(property )*",
}


def read_junit(file: Path | str) -> dict[tuple[str, str], str]:
    """Return suite and name of each case -> ``passed``, ``failed`` or ``skipped``, once the whole file is checked."""
    root = tree.parse(file).getroot()
    assert root.tag == "testsuites"
    for element in root.iter():
        names = set(element.attrib)
        assert REQUIRED.get(element.tag, set()) <= names <= ATTRIBUTES.get(element.tag, set()), element.tag
        assert all(element.attrib[name].isdecimal() for name in names & NUMBERS), element.attrib
        assert float(element.get("time", "0")) >= 0
        children = "".join(f"{child.tag} " for child in element)
        assert re.fullmatch(CHILDREN.get(element.tag, ""), children), f"{element.tag}: {children}"
        if element.tag in CHILDREN:
            assert not (element.text or "").strip()
    cases = {}
    for suite in root:
        found = suite.findall("testcase")
        for case in found:
            outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
            assert len(outcomes) <= 1, case.attrib
            outcome = {"failure": "failed", "error": "failed"}.get(*outcomes, *outcomes) if outcomes else "passed"
            cases[suite.attrib["name"], case.attrib["name"]] = outcome
        assert int(suite.attrib["tests"]) == len(found)
        assert int(suite.get("failures", "0")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("skipped", "0")) == len(suite.findall("testcase/skipped"))
    for name in ("tests", "failures", "errors"):
        assert int(root.get(name, "0")) == sum(int(suite.get(name, "0")) for suite in root), name
    assert len(cases) == int(root.get("tests", "0")), "two cases of a suite have one name"
    return cases
