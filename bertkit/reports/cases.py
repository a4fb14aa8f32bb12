"""Gates of a command as test cases, and their report: JUnit for pipelines, or Markdown for pull requests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertkit.errors import GateError, UsageError
from bertkit.recipe.sections import expand_path
from bertkit.reports.text import escape_markdown
from bertkit.storage.files import write_text
from bertkit.storage.outputs import REPORT_MARK, check_parent_exists, is_written_by_bertkit, lock_output

Outcome = Literal["passed", "failed", "skipped"]
_MARKS: dict[Outcome, str] = {"passed": "✅", "failed": "❌", "skipped": "➖"}
_MAX_SHOWN = 50  # failed cases first
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Case:
    """Check of data or of a model, and its outcome.

    Args:
        group: Subject of the check, such as the name of a split.
        name: Name of the check within its group.
        outcome: Whether the check passed, failed or was skipped.
        text: Measurement or reason, in a sentence.
    """

    group: str
    name: str
    outcome: Outcome
    text: str


def failed_gates_error(cases: Sequence[Case]) -> GateError | None:
    """Return the error that names the first failed gates, or None if all passed."""
    failed = [case for case in cases if case.outcome == "failed"]
    if not failed:
        return None
    texts = "; ".join(f"{case.group}, {case.name}: {case.text}" for case in failed[:3])
    more = f"; and {len(failed) - 3:,} more" if len(failed) > 3 else ""
    count = "a gate was" if len(failed) == 1 else f"{len(failed):,} gates were"
    return GateError(f"{count} not passed: {texts}{more}")


def add_measurements(gates: Sequence[Case], measurements: Iterable[tuple[str, str, str]]) -> list[Case]:
    """Return the gates, and a passed case per measurement (group, name, text) without a gate."""
    gate_keys = {(case.group, case.name) for case in gates}
    cases = (Case(group, name, "passed", text) for group, name, text in measurements if (group, name) not in gate_keys)
    return [*gates, *cases]


def check_report(output: str | Path | None) -> Path | None:
    """Return the path of the requested report, or None if no report is requested.

    Raises:
        UsageError: If it does not end in .xml or .md, or is a file that bertkit did not write as a report.
        ResourceError: If its folder is missing.
    """
    if output is None:
        return None
    file = expand_path(output)
    if file.suffix.lower() not in _WRITERS:
        raise UsageError("a report is JUnit or Markdown", f"name it {file.stem}.xml or {file.stem}.md", file=file)
    check_parent_exists(file, "--report")
    if file.exists() and not is_written_by_bertkit(file, REPORT_MARK):
        raise UsageError("the file exists and is not a report of bertkit", "choose another --report", file=file)
    return file


def write_cases(file: Path, title: str, cases: Sequence[Case]) -> None:
    """Write a report in the format of its file name extension.

    Raises:
        ResourceError: If another process is writing it, or it cannot be written.
    """
    with lock_output(file):
        write_text(file, _WRITERS[file.suffix.lower()](title, cases))


def _as_junit(title: str, cases: Sequence[Case]) -> str:
    """Return cases as JUnit XML: a suite per group, and a test case per case with a unique name in its suite."""
    from xml.etree import ElementTree as tree

    def clean(text: str) -> str:
        # XML parsers reject such a character even as an entity like `&#1;`.
        return _NOT_XML.sub("\ufffd", text)

    def count(counted_cases: Sequence[Case]) -> dict[str, str]:
        counter = Counter(case.outcome for case in counted_cases)
        counts = {"tests": counter.total(), "failures": counter["failed"], "errors": 0, "skipped": counter["skipped"]}
        return {name: str(value) for name, value in counts.items()} | {"time": "0"}

    root = tree.Element("testsuites", {"name": clean(title)} | count(cases))
    del root.attrib["skipped"]  # The schema allows this attribute only for suites.
    for group in dict.fromkeys(case.group for case in cases):
        members = [case for case in cases if case.group == group]
        suite = tree.SubElement(root, "testsuite", {"name": clean(group)} | count(members))
        # Append numbers to repeated names, because pipelines identify cases only by name.
        name_counts = Counter[str]()
        for case in members:
            name_counts[case.name] += 1
            name = case.name if name_counts[case.name] == 1 else f"{case.name} ({name_counts[case.name]})"
            names = {"classname": clean(f"{title}.{group}"), "name": clean(name), "time": "0"}
            element = tree.SubElement(suite, "testcase", names)
            if case.outcome == "passed":
                tree.SubElement(element, "system-out").text = clean(case.text)
            else:
                tag = "failure" if case.outcome == "failed" else "skipped"
                tree.SubElement(element, tag, {"message": clean(case.text)})
    tree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{REPORT_MARK}\n{tree.tostring(root, "unicode")}\n'


def _as_markdown(title: str, cases: Sequence[Case]) -> str:
    """Return cases as the summary of a pull request: a line of counts, and a table with failures first."""
    counts = Counter(case.outcome for case in cases)
    verdict = _MARKS["failed" if counts["failed"] else "passed"]
    lines = [REPORT_MARK, f"## {verdict} {escape_markdown(title)}", ""]
    lines += [", ".join(f"{counts[outcome]:,} {outcome}" for outcome in _MARKS if counts[outcome]) or "No case.", ""]
    if cases:
        lines += ["| | case | |", "|---|---|---|"]
    sorted_cases = sorted(cases, key=lambda case: case.outcome != "failed")
    for case in sorted_cases[:_MAX_SHOWN]:
        cells = _MARKS[case.outcome], escape_markdown(f"{case.group}: {case.name}"), escape_markdown(case.text)
        lines.append(f"| {' | '.join(cells)} |")
    if len(cases) > _MAX_SHOWN:
        lines += ["", f"{len(cases) - _MAX_SHOWN:,} more are not shown."]
    return "\n".join(lines) + "\n"


_WRITERS = {".xml": _as_junit, ".md": _as_markdown}
